"""What a target would refuse of a flow's records, found before a round: rights, keys, sizes and timestamps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import UnitRange
from kbackup.jobs.restore.demands import Demands, TimeLimit, UnfitRecords, codecs_of, find_unfit
from kbackup.jobs.restore.preflight import NO_LIMIT, effective_configs, time_limit
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Silent
from kbackup.mirror.apply.pending import find_pending
from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.mirror.settings import replicated_configs
from kbackup.spark.tasks import Spark
from kbackup.types import TopicPartition

_RIGHTS = ("WRITE", "READ")
"""Of the mirror on a remote topic. Reading is needed to commit its applied positions."""

_DEFAULT_LIMIT = "1048588"
"""Kafka's default of max.message.bytes."""


@dataclass(frozen=True)
class Forecast:
    """Looks at a restore point of `archive` and at the target, and changes nothing. `positions` are the applied ones of
    the flow. `spark` is called where many records must be read."""

    flow: Flow
    archive: Archive
    point: Manifest
    target: Cluster
    positions: Mapping[TopicPartition, AppliedPosition]
    spark: Spark

    def refusals(self, topics: Sequence[RemoteTopic], existing: Iterable[str]) -> dict[str, str]:
        """Return, by remote topic, why the next round would hold it back. `existing` are names of the target's
        topics."""
        remotes = {topic.remote for topic in topics}
        there = remotes.intersection(existing)
        reasons: dict[str, str] = {}
        for remote, missing in self.target.missing_rights(there, _RIGHTS).items():
            rights = " and ".join(right.capitalize() for right in missing)
            reasons[remote] = f"the mirror's user lacks {rights} on the topic"
        stop = self.flow.on_recreate == "stop"
        # As a round finds them: what is applied already can't be refused any more.
        pending = find_pending(self.archive, self.point, topics, self.positions, {}, stop)
        ranges: list[UnitRange] = []
        for of_partition in pending.ranges.values():
            ranges += of_partition
        remotes_with_records = {range_.target for range_ in ranges}
        due = [topic for topic in topics if topic.remote in remotes_with_records]
        demands = self._demands(due, there)
        unfit = find_unfit(ranges, demands, self.archive.store, self.spark, Silent())
        for remote, records in unfit.items():
            words = [_words(each, demands[remote]) for each in records]
            if remote in reasons:
                words.insert(0, reasons[remote])
            reasons[remote] = "; ".join(words)
        return reasons

    def _demands(self, topics: Sequence[RemoteTopic], there: Iterable[str]) -> dict[str, Demands]:
        """Return what each topic demands of its records, as its configs are after the next round."""
        remotes = {topic.remote for topic in topics}
        own = self.target.all_topic_configs(remotes.intersection(there))
        defaults = self.target.broker_configs()
        demands: dict[str, Demands] = {}
        for topic in topics:
            present = own.get(topic.remote)
            copied = replicated_configs(self.flow, topic.configs or {})
            # As the round leaves them: it creates missing topics, and sets the configs of the others if it syncs them.
            if present is None:
                configs = effective_configs(copied, defaults)
            elif self.flow.sync_topic_configs.enabled:
                configs = {**present, **copied}
            else:
                configs = present
            demands[topic.remote] = self._demands_of(configs)
        return demands

    def _demands_of(self, configs: Mapping[str, str]) -> Demands:
        has_key = "compact" in configs.get("cleanup.policy", "delete")
        limit = int(configs.get("max.message.bytes", _DEFAULT_LIMIT))
        codecs = codecs_of(self.flow.client("target"), configs.get("compression.type", "producer"))
        if configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime":
            return Demands(has_key, limit, codecs)
        now = int(time.time() * 1000)
        before = _time_limit(configs, "before")
        after = _time_limit(configs, "after")
        return Demands(has_key, limit, codecs, now, before=before, after=after)


def _time_limit(configs: Mapping[str, str], side: Literal["before", "after"]) -> TimeLimit | None:
    """Return how far a record's timestamp may be from now; None without a limit."""
    limit = TimeLimit(*time_limit(configs, side))
    return None if limit.ms == NO_LIMIT else limit


def _words(unfit: UnfitRecords, demands: Demands) -> str:
    """Return what a remote topic has against some records, and what helps."""
    place = f"{unfit.source.topic}:{unfit.source.partition}:{unfit.first}"
    which = f"record {place}" if unfit.records == 1 else f"{unfit.records:,} records, the first is {place}"
    if unfit.kind == "no key":
        return f"it is compacted and takes no record without a key ({which}); set cleanup.policy without compact"
    if unfit.kind == "too large":
        return f"it takes records of up to {demands.limit} bytes ({which}); raise max.message.bytes"
    bound = demands.after if unfit.kind == "too late" else demands.before
    assert bound is not None  # noqa: S101 (without a bound, no timestamp is unfit)
    return f"it refuses timestamps more than {bound.ms} ms from now ({which}); raise {bound.config}"
