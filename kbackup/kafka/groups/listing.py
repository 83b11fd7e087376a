"""The groups that brokers list, of whatever kind, and the brokers and groups that the listing lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient

from kbackup.kafka.client.client import Connection
from kbackup.kafka.client.retry import COORDINATOR_NOT_READY, TIMEOUT
from kbackup.kafka.groups.calls import GroupCalls
from kbackup.kafka.groups.coordinators import OFFSETS_TOPIC, probe_groups

OTHER = "other"
"""The type of a group that is neither classic nor of the consumer protocol: a share or a streams group."""

_NO_SUCH_GROUP = "brokers list it, and have no group of that name: librdkafka cuts a name at a NUL byte"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """`type` is classic, consumer or `OTHER`, in lower case as `state`, which is '' for others."""

    group: str
    type: str
    state: str


class GroupListing:
    """Raises `UnreachableError` or `ClusterError` where no broker answers."""

    def __init__(self, connection: Connection, admin: AdminClient, calls: GroupCalls) -> None:
        self._connection = connection
        self._admin = admin
        self._calls = calls

    def ask(self) -> tuple[dict[str, GroupInfo], dict[str, KafkaError]]:
        """Ask every broker once. Coordinators are asked before: one that is not ready lists less than it has."""
        errors = self._coordinator_errors()
        named, missing = self._calls.names()
        listing = self._connection.result(
            self._admin.list_consumer_groups(request_timeout=TIMEOUT), "listing consumer groups"
        )
        errors += [*(listing.errors or []), *filter(None, [missing])]
        reasons = {error.str(): error for error in errors}
        failed = {f"(listing {number})": error for number, error in enumerate(reasons.values(), 1)}
        groups = {g.group_id: GroupInfo(g.group_id, _name(g.type), _name(g.state)) for g in listing.valid}
        for group in named:
            known = groups.get(group.group)
            if group.error is not None and group.error.code() in COORDINATOR_NOT_READY:
                failed[group.group] = group.error
            elif known is None:
                classic = bool(group.protocol_type)
                groups[group.group] = GroupInfo(
                    group.group, "classic" if classic else OTHER, group.state.lower() if classic else ""
                )
            elif known.type == "classic" and group.state == "Dead":
                failed[group.group] = KafkaError(KafkaError._INVALID_ARG, _NO_SUCH_GROUP)
        return groups, failed

    def _coordinator_errors(self) -> list[KafkaError]:
        """Return the errors of coordinators that are not ready. They tell nothing to a user without Describe on the
        groups or on `OFFSETS_TOPIC`."""
        asked = self._admin.describe_topics(TopicCollection([OFFSETS_TOPIC]), request_timeout=TIMEOUT)
        topic = self._connection.result(asked[OFFSETS_TOPIC], f"describing topic {OFFSETS_TOPIC}", _unseen)
        answers = self._calls.committed(probe_groups(len(topic.partitions) if topic is not None else 0))
        errors = [answer for _, answer in answers if isinstance(answer, KafkaError)]
        return [error for error in errors if error.code() in COORDINATOR_NOT_READY]


def _unseen(error: KafkaError) -> bool:
    """Return whether a topic does not exist (no group has committed yet), or may not be seen."""
    return error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def _name(value: Any) -> str:
    return "" if value is None else str(value.name).lower()
