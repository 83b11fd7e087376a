"""Groups of an archive through a server."""

from __future__ import annotations

import msgspec

from kbackup.archive.run import open_or_create
from kbackup.kafka.control import messages
from kbackup.serve.protocol import BROKER_ID
from tests.support.archives import commit_point, group_at
from tests.support.serve_client import ServeClient, served
from tests.unit.serve.made import TOPIC, archive_of, made_records


def test_archived_consumer_groups_are_served_and_share_groups_are_not() -> None:
    store = archive_of(made_records(range(10)), made_records(range(10)))
    groups = [group_at("billing", (TOPIC, 0, 4), (TOPIC, 1, 5)), group_at("share", (TOPIC, 0, 6))]
    topics = open_or_create(store).restore_point("latest").topics
    captured = [msgspec.structs.replace(topic, captured=2) for topic in topics]
    commit_point(open_or_create(store), 2, topics=captured, groups=groups)
    with served(store) as serving, ServeClient(serving) as client:
        listed = client.ask(
            messages.ListGroupsRequest(states_filter=[], types_filter=[]), messages.ListGroupsResponse, 5
        )
        assert [(each.group_id, each.group_state) for each in listed.groups] == [("billing", "Empty")]

        found = client.ask(
            messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["billing"]),
            messages.FindCoordinatorResponse,
            6,
        )
        (coordinator,) = found.coordinators
        assert (coordinator.node_id, coordinator.host, coordinator.port) == (BROKER_ID, *serving.address)

        group = messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="billing", topics=None)
        answer = client.ask(messages.OffsetFetchRequest(groups=[group]), messages.OffsetFetchResponse, 9)
        (topic,) = answer.groups[0].topics
        assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 4), (1, 5)]
