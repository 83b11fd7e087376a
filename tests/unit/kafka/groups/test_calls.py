"""Groups without a broker: how commits are cut, who is asked again, and the client behind a Python object."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UsageError
from kbackup.kafka.groups import admin as group_admin
from kbackup.kafka.groups import calls as binding
from kbackup.kafka.groups.calls import Committed, GroupCalls, client_of, committed_of, lib, partitions_of
from kbackup.types import TopicPartition

NOWHERE: dict[str, str | int | float | bool] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.none() | st.integers(0, 99), st.text(max_size=300))))
def test_partition_lists_hold_committed_offsets(entries: list[tuple[int, int | None, str]]) -> None:
    offsets = [
        Committed(TopicPartition(f"topic-{n}", n), offset, epoch, metadata)
        for n, (offset, epoch, metadata) in enumerate(entries)
    ]
    made = partitions_of(offsets, whole=True)
    try:
        assert [committed_of(made.contents.elems[n]) for n in range(made.contents.cnt)] == offsets
    finally:
        lib.rd_kafka_topic_partition_list_destroy(made)


def test_clients_are_found_in_their_objects() -> None:
    admin, consumer = AdminClient(NOWHERE), Consumer({**NOWHERE, "group.id": "g"})
    assert lib.rd_kafka_opaque(client_of(admin)) == id(admin)
    assert client_of(consumer) != client_of(admin)
    consumer.close()
    with pytest.raises(UsageError, match="keeps its client in another way"):
        client_of(consumer)  # it has none any more


@pytest.mark.parametrize(
    ("release", "missing", "reason"),
    [
        ("3.0.0", {}, "keeps its clients in a way that is not known"),
        ("2.99.0", {"rd_kafka_not_there": (None, ())}, "brings a librdkafka without rd_kafka_not_there"),
    ],
)
def test_an_unknown_release_of_confluent_kafka_is_named(
    release: str, missing: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "version", lambda name: release)
    monkeypatch.setattr(binding, "_SIGNATURES", missing)
    with pytest.raises(UsageError, match=f"confluent-kafka {release} {reason}"):
        binding._load()


def test_names_that_c_can_not_hold_are_refused_unasked() -> None:
    calls = GroupCalls(Consumer({**NOWHERE, "group.id": "g"}), 1)
    said = {group: str(answer) for group, answer in calls.committed(["", "a\0b"])}
    assert "its name is empty" in said[""]
    assert "its name has a NUL byte" in said["a\0b"]


def test_commits_are_cut_to_what_a_batch_holds() -> None:
    some = [Committed(TopicPartition("t", p), p, None, "m" * 4096) for p in range(500)]
    portions = list(group_admin._portions(some))
    assert [each for portion in portions for each in portion] == some
    sizes = [sum(len(c.metadata) for c in portion) for portion in portions]
    assert max(sizes) <= 256 << 10
    assert len(portions) < 10
    huge = Committed(TopicPartition("t", 0), 0, None, "m" * (1 << 20))
    assert list(group_admin._portions([huge, huge])) == [[huge], [huge]]
    assert list(group_admin._portions([])) == []
