"""Restore with the offsets of the source: every record, every log's start and end, and every group's position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kbackup.archive.reader import open_archive
from kbackup.types import TopicPartition
from tests.integration.conftest import Kbackup
from tests.integration.zoo import POSITIONS, SECOND, Zoo
from tests.support.truth import Records, log_ends, log_starts, positions, read_topic
from tests.unit.formats.reference import Record

AS_THEY_ARE = ["--topic-config=message.timestamp.type=CreateTime", "--topic-config=min.cleanable.dirty.ratio=1.0"]


@dataclass(frozen=True)
class Restored:
    """The zoo, restored with its offsets under a prefix."""

    zoo: Zoo
    report: dict[str, Any]

    def topic(self, name: str) -> str:
        return f"same.{self.zoo.topic(name)}"

    def read(self, name: str, isolation: str) -> Records:
        return read_topic(self.zoo.broker.bootstrap, self.topic(name), isolation)

    def archived_bounds(self, name: str) -> dict[int, tuple[int, int]]:
        """Return the start and the end of each log, as the newest restore point has them."""
        manifest = open_archive(self.zoo.archive.store).restore_point("latest")
        held = self.zoo.held(name, 3)
        bounds: dict[int, tuple[int, int]] = {}
        for topic in manifest.topics:
            if topic.name != self.zoo.topic(name):
                continue
            for partition in topic.partitions:
                records = held[partition.partition]
                # The archive may have records that the source had deleted by then.
                start = min([partition.start, *(record.offset for record in records[:1])])
                bounds[partition.partition] = (start, partition.end)
        return bounds


@pytest.fixture(scope="module")
def restored(zoo: Zoo, kbackup: Kbackup) -> Restored:
    names = ["--map-regex", r"^(.*)$=same.\1", "--restore-id", f"{zoo.prefix}-same"]
    report = kbackup.restore(zoo.archive, "--same-offsets", *names, *AS_THEY_ARE)
    return Restored(zoo, report)


def _plain(records: Records) -> dict[int, list[tuple[Any, ...]]]:
    """Return records without the kind of their time: a restore sets times as a producer does."""
    plain: dict[int, list[tuple[Any, ...]]] = {}
    for partition, of_partition in records.items():
        plain[partition] = [_parts(record) for record in of_partition]
    return plain


def _parts(record: Record) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("name", SECOND)
def test_every_record_has_its_offset_and_gaps_show_nothing(name: str, isolation: str, restored: Restored) -> None:
    assert _plain(restored.read(name, isolation)) == _plain(restored.zoo.held(name, 3))


@pytest.mark.parametrize("name", SECOND)
def test_logs_begin_and_end_where_they_did(name: str, restored: Restored) -> None:
    bootstrap, topic = restored.zoo.broker.bootstrap, restored.topic(name)
    starts, ends = log_starts(bootstrap, topic), log_ends(bootstrap, topic, "read_uncommitted")
    found = {partition: (starts[partition], ends[partition]) for partition in ends}
    assert found == restored.archived_bounds(name)


@pytest.mark.parametrize("position", POSITIONS)
def test_groups_have_the_offsets_that_they_had(position: str, restored: Restored) -> None:
    zoo = restored.zoo
    stood = zoo.moments[2].groups[position]
    stand = positions(zoo.broker.bootstrap, zoo.group(position))
    for name in SECOND:
        for partition, (start, end) in restored.archived_bounds(name).items():
            committed, metadata = stood[zoo.topic(name), partition]
            expected = min(max(committed, start), end)
            place = TopicPartition(restored.topic(name), partition)
            assert stand[place] == (expected, metadata), place


def test_the_report_says_how_each_log_was_filled(restored: Restored) -> None:
    fills = {fill["target"]: fill for fill in restored.report["fills"]}
    assert fills[restored.topic("long")]["way"] == "in place"
    assert fills[restored.topic("ledger")]["way"] == "markers"
    assert fills[restored.topic("trimmed")]["head"] > 0


def test_kafkas_own_tools_see_the_same_offsets(restored: Restored) -> None:
    broker, topic = restored.zoo.broker, restored.topic("ledger")
    held = restored.zoo.held("ledger", 3)
    expected = sorted(f"Partition:{number}\tOffset:{record.offset}" for number in held for record in held[number])
    for isolation in ("read_committed", "read_uncommitted"):
        printed = broker.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning"),
            # It ends by the number of records: how long none comes says nothing on a busy machine.
            *("--isolation-level", isolation, "--max-messages", str(len(expected))),
            *("--formatter-property", "print.offset=true", "--formatter-property", "print.partition=true"),
            *("--formatter-property", "print.value=false"),
        )
        assert sorted(line for line in printed.splitlines() if line.startswith("Partition:")) == expected
    bounds = restored.archived_bounds("ledger")
    for time, side in (("earliest", 0), ("latest", 1)):
        printed = broker.tool(
            "org.apache.kafka.tools.GetOffsetShell",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--time", time),
        )
        shown = [line for line in printed.splitlines() if line.startswith(topic)]
        assert sorted(shown) == sorted(f"{topic}:{number}:{each[side]}" for number, each in bounds.items())


def test_a_window_in_time_gives_a_head_and_a_skip_a_gap(zoo: Zoo, kbackup: Kbackup) -> None:
    source, target = zoo.topic("long"), f"window.{zoo.topic('long')}"
    records = zoo.held("long", 3)[0]
    middle = records[len(records) // 2]
    kept = [record for record in records if (record.timestamp or 0) >= (middle.timestamp or 0)]
    left_out = kept[10].offset
    options = ["--from-time", str(middle.timestamp), "--skip", f"{source}:0:{left_out}", "--no-groups"]
    kbackup.restore(zoo.archive, "--same-offsets", "-t", source, "--map", f"{source}={target}", *options)
    found = read_topic(zoo.broker.bootstrap, target, "read_uncommitted")[0]
    assert [record.offset for record in found] == [each.offset for each in kept if each.offset != left_out]
    assert log_starts(zoo.broker.bootstrap, target)[0] == kept[0].offset


def test_a_topic_that_is_there_is_refused_and_so_is_into_existing(zoo: Zoo, kbackup: Kbackup) -> None:
    refused = kbackup.restore(zoo.archive, "--same-offsets", "-t", zoo.topic("late"), code=1)
    assert "their offsets are taken" in refused["error"]["message"]
    assert "--into-existing" not in refused["error"]["message"]
    kbackup.restore(zoo.archive, "--same-offsets", "--into-existing", "-t", zoo.topic("late"), code=2)


def test_a_dry_run_says_how_each_log_would_be_filled(zoo: Zoo, kbackup: Kbackup) -> None:
    names = ["--map-regex", r"^(.*)$=dry.\1"]
    planned = kbackup.restore(zoo.archive, "--same-offsets", "--dry-run", *names)
    ways = {fill["source"]: fill["way"] for fill in planned["fills"]}
    assert ways[zoo.topic("long")] == "in place"
    assert ways[zoo.topic("compacted")] == "markers"
