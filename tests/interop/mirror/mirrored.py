"""A topic of a source that was applied to a target, with the truth on where each record went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

from kbackup.archive.models import Group, GroupOffset
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.mirror.internal import InternalTopics, emit_checkpoints, emit_offset_syncs
from kbackup.mirror.positions import AppliedTopics
from kbackup.mirror.records import Checkpoint
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.support.archives import commit_point, topic_state
from tests.support.flow_maps import Pairs, map_of
from tests.support.truth import Records, read_topic

Places = Mapping[str, Mapping[int, int]]
"""By group: its committed offset by partition."""


@dataclass
class Mirrored:
    """`pairs` are by partition of the source's topic."""

    source: Broker
    target: Broker
    archive: Archive
    topic: str
    pairs: dict[int, Pairs] = field(default_factory=dict)
    point: int = 0

    @property
    def remote(self) -> str:
        return f"A.{self.topic}"

    @property
    def topics(self) -> Sequence[RemoteTopic]:
        return [RemoteTopic(self.topic, self.remote, len(self.pairs))]

    @property
    def positions(self) -> dict[TopicPartition, AppliedPosition]:
        return {
            TopicPartition(self.remote, p): AppliedPosition(1, pairs[-1][0] + 1)
            for p, pairs in self.pairs.items()
            if pairs
        }

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap | None:
        """As `FlowMap`."""
        pairs = self.pairs[remote.partition]
        return map_of(pairs) if pairs and incarnation == 1 else None

    def truth(self, partition: int, committed: int) -> int:
        """Return the target offset at which a group resumes that has committed an offset of the source."""
        pairs = self.pairs[partition]
        return next((target for source, target in pairs if source >= committed), pairs[-1][1] + 1)

    def apply(self, chunk: int = 37) -> None:
        """Produce all that the target lacks, `chunk` records a transaction."""
        producer = Producer(self.target.client(**{"transactional.id": f"applier of {self.topic}"}))
        producer.init_transactions(30)
        records: Records = read_topic(self.source.bootstrap, self.topic)
        for partition, every in records.items():
            pairs = self.pairs.setdefault(partition, [])
            new = [r for r in every if not pairs or r.offset > pairs[-1][0]]
            for at in range(0, len(new), chunk):
                producer.begin_transaction()
                for record in new[at : at + chunk]:

                    def applied(error: KafkaError | None, message: Message, source: int = record.offset) -> None:
                        assert error is None, error
                        offset = message.offset()
                        assert offset is not None
                        pairs.append((source, offset))  # noqa: B023 (all are delivered in this round)

                    producer.produce(self.remote, record.value, record.key, partition=partition, on_delivery=applied)
                producer.commit_transaction(60)

    def capture(self, groups: Places, metadata: str = "") -> None:
        """Commit a restore point at which groups stand there."""
        self.point += 1
        topic = topic_state(
            self.topic, [(0, pairs[-1][0] + 1, []) for pairs in self.pairs.values()], captured=self.point
        )
        known = [
            Group(
                group=group,
                type="classic",
                state="empty",
                offsets=tuple(
                    GroupOffset(topic=self.topic, partition=p, offset=o, metadata=metadata) for p, o in at.items()
                ),
            )
            for group, at in groups.items()
        ]
        commit_point(self.archive, self.point, topics=[topic], groups=known)

    def emit(self, flow: Flow, internal: InternalTopics) -> list[Checkpoint]:
        """A round's offset syncs and checkpoints."""
        applied = AppliedTopics(self.topics, self.positions, self)
        emit_offset_syncs(flow, internal, applied)
        point = self.archive.restore_point("latest")
        return emit_checkpoints(flow, internal, self.archive, point, applied).current
