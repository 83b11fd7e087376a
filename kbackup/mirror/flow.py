"""A flow from one source to one target: its settings and its status document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kbackup.archive import layout
from kbackup.archive.models import Document, Member, dump, load
from kbackup.archive.restores.unmapped import UnmappedRecords
from kbackup.errors import NotFoundError, UsageError
from kbackup.jobs.schemas.judgement import SchemaTopics, Unmapped
from kbackup.kafka.client import Properties
from kbackup.metadata.entities import TopicName
from kbackup.schemas.base import RegistryOptions
from kbackup.store.base import Store
from kbackup.types import TopicPartition

HEARTBEATS = "heartbeats"


@dataclass(frozen=True)
class DefaultPolicy:
    """MirrorMaker 2's `DefaultReplicationPolicy`, quirks included: a remote topic is called alias, separator, topic.

    A local topic whose name holds the separator looks remote: `order.events` comes from a cluster `order`.
    """

    separator: str = "."
    internal_separator_enabled: bool = True
    """Internal topics take the separator, too; `.` otherwise."""

    def format_remote_topic(self, source: str, topic: str) -> str:
        """Return the name in a target of a topic of the cluster `source`."""
        return f"{source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the cluster that a remote topic comes from; None for a local topic."""
        # Java's split drops empty parts at the end: `A.` has no source, and `.x` has the source ``.
        parts = topic.split(self.separator)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name of a remote topic in the cluster that it comes from; None for a local topic."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        """Return the name of a remote topic in the cluster where its first record was written."""
        # Under the Identity policy a topic is its own upstream, and the way would never end.
        while (upstream := self.upstream_topic(topic)) is not None and upstream != topic:
            topic = upstream
        return topic

    def heartbeats_topic(self) -> str:
        return HEARTBEATS

    def checkpoints_topic(self, alias: str) -> str:
        return f"{alias}{self._checkpoints_suffix}"

    def offset_syncs_topic(self, alias: str) -> str:
        return f"mm2-offset-syncs{self._internal_separator}{alias}{self._internal_separator}internal"

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.original_topic(topic) == HEARTBEATS

    def is_checkpoints_topic(self, topic: str) -> bool:
        return topic.endswith(self._checkpoints_suffix)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        own = topic.startswith("mm2") and topic.endswith(f"{self._internal_separator}internal")
        return own or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        return topic.startswith(("__", ".")) or self.is_mm2_internal_topic(topic)

    @property
    def _internal_separator(self) -> str:
        return self.separator if self.internal_separator_enabled else "."

    @property
    def _checkpoints_suffix(self) -> str:
        return f"{self._internal_separator}checkpoints{self._internal_separator}internal"


@dataclass(frozen=True)
class IdentityPolicy(DefaultPolicy):
    """`IdentityReplicationPolicy`: topics keep their names, but those that end in `heartbeats`, which the Default
    policy names."""

    source_alias: str | None = None

    def format_remote_topic(self, source: str, topic: str) -> str:
        # Java's clients find upstream clusters by topics called `<alias>.heartbeats`, so these keep their prefix.
        return super().format_remote_topic(source, topic) if topic.endswith(HEARTBEATS) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if topic.endswith(HEARTBEATS) else self.source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if topic.endswith(HEARTBEATS) else topic


NameFilter = Callable[[str], bool]
"""Whether a name is selected: included and not excluded. A pattern must match the whole name."""


def no_name(name: str) -> bool:
    """Select no name. It is a `NameFilter`."""
    return False


class Clock(NamedTuple):
    """Something that happens every `seconds`, where it is enabled."""

    enabled: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One direction of a mirror. Names follow MirrorMaker 2's keys; defaults are in `properties`.

    `source_properties` and `target_properties` are librdkafka's properties; `archive` is the address of the archive
    of `source`, None if the file names none.
    """

    source: str
    target: str
    source_properties: Properties | None = field(default=None, repr=False)
    target_properties: Properties | None = field(default=None, repr=False)
    archive: str | None = None
    policy: DefaultPolicy
    topics: NameFilter
    groups: NameFilter
    excluded_configs: NameFilter
    use_defaults_from: Literal["source", "target"]
    replication_factor: int
    heartbeats_replication_factor: int
    checkpoints_replication_factor: int
    offset_syncs_replication_factor: int
    heartbeats_replicated: bool
    emit_heartbeats: Clock
    emit_checkpoints: Clock
    emit_offset_syncs: bool
    offset_syncs_location: Literal["source", "target"]
    offset_lag_max: int
    refresh_topics: Clock
    refresh_groups: Clock
    sync_topic_configs: Clock
    sync_topic_acls: Clock
    sync_group_offsets: Clock
    checkpoint_rule: Literal["exact", "mm2"]
    on_recreate: Literal["continue", "stop"]
    schemas: Literal["none", "same", "map"] = "none"
    schema_topics: SchemaTopics = field(default_factory=SchemaTopics)
    unmapped: Unmapped = "keep"
    source_registry: RegistryOptions = field(default_factory=RegistryOptions)
    target_registry: RegistryOptions = field(default_factory=RegistryOptions)
    starts_at_end: bool = False
    """True for a flow that leaves out the records that the archive has in the first round of a topic."""
    comes_back: NameFilter = field(default=no_name, repr=False)
    """Topics that would come back to the source by other flows, which only the Identity policy allows."""

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    def client(self, side: Literal["source", "target"]) -> Properties:
        """Return librdkafka's properties for the source or the target. `UsageError` if the file names no brokers."""
        alias = self.source if side == "source" else self.target
        properties = self.source_properties if side == "source" else self.target_properties
        if properties is None:
            raise UsageError(
                f"flow {self.name}: the file names no brokers of {alias}", f"set {alias}.bootstrap.servers"
            )
        return properties

    def archive_address(self) -> str:
        """Return the address of the source's archive. `UsageError` if none is named."""
        if self.archive is None:
            raise UsageError(
                f"flow {self.name}: no archive is named",
                "write kbackup.archive = s3://bucket/{source} into the file, or give --archive",
            )
        return self.archive


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """A topic of the source and its counterpart in the target. `partitions` is the source's count."""

    source: str
    remote: str
    partitions: int
    configs: dict[str, str] | None = None
    """The dynamic configs of the source's topic; None if the archive does not know them."""

    @property
    def remote_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.remote, number) for number in range(self.partitions)]


class AppliedPosition(NamedTuple):
    """Records of `incarnation` of the source's topic below offset `next` are committed in the target; `-1` and 0
    where none is."""

    incarnation: int
    next: int


class TopicStatus(Member, frozen=True, kw_only=True):
    """A topic that the flow selects. `applied` has the applied position of each partition of `incarnation`, by
    partition number: the next source offset to apply. `incarnation` is -1 if no record is applied yet.

    `held_back` is the reason why the topic's records wait; empty if they don't. `held_since` is when they began to
    wait; empty as well where an older kbackup wrote it."""

    source: TopicName
    remote: TopicName
    incarnation: int
    applied: tuple[int, ...]
    held_back: str = ""
    held_since: str = ""


class Refusal(Member, frozen=True, kw_only=True):
    """A refusal of the target when the flow last set a subject: `subject` is 'configs', 'acls' or 'groups'. Or
    'schemas': what names schemas in records and is not mapped."""

    subject: str
    reason: str


class Incident(Member, frozen=True, kw_only=True):
    """Records that the flow never applies, or a topic or remote topic that was created again, noticed at `at`."""

    at: str
    topic: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    message: str


class FlowStatus(Document, frozen=True, kw_only=True):
    """`restore_point` is the newest applied one, 0 if there is none. `written_at` is the flow's sign of life.

    `unmapped` are all records of the flow, as far as its rounds have told, whose schemas could not be mapped.
    `rounds`, `records` and `bytes` are those of the process since `started_at`; `round_*` those of its last round with
    new records or a new restore point. `incidents` are the newest ones of the flow. `error` is the message of a round
    that failed, or of what ended the process; empty after a round that went well."""

    format: Literal["kbackup-flow-status"] = "kbackup-flow-status"
    source: str
    target: str
    archive_id: str
    tool: str
    started_at: str
    written_at: str
    restore_point: int = 0
    restore_point_at: str = ""
    rounds: int = 0
    records: int = 0
    bytes: int = 0
    round_at: str = ""
    round_records: int = 0
    round_bytes: int = 0
    round_seconds: float = 0.0
    topics: tuple[TopicStatus, ...] = ()
    incidents: tuple[Incident, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    error: str = ""
    unmapped: tuple[UnmappedRecords, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


def write_status(state: Store, status: FlowStatus) -> None:
    """Replace the flow's status document in `state`, the archive or the folder of --state."""
    state.put(layout.mirror_key(status.source, status.target, layout.STATUS), dump(status, indent=-1))


def read_status(store: Store) -> list[FlowStatus]:
    """Return the status of every flow of the archive, by source and target."""
    statuses: list[FlowStatus] = []
    for source in store.list_dirs(layout.MIRRORS):
        for target in store.list_dirs(f"{layout.MIRRORS}{source}/"):
            status = _read(store, f"{layout.MIRRORS}{source}/{target}/{layout.STATUS}")
            if status is not None:
                statuses.append(status)
    return sorted(statuses, key=lambda status: (status.source, status.target))


def has_flows(store: Store) -> bool:
    """Return whether a flow of the archive has begun, by one listing."""
    return any(True for _ in store.list_dirs(layout.MIRRORS))


def read_flow_status(store: Store, source: str, target: str) -> FlowStatus | None:
    """Return the status of one flow; None before its first round."""
    return _read(store, layout.mirror_key(source, target, layout.STATUS))


def _read(store: Store, key: str) -> FlowStatus | None:
    try:
        return load(FlowStatus, store.get(key), key)
    except NotFoundError:
        return None
