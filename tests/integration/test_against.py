"""Run `verify --against` on a real cluster: a restored topic is equal, and each later change is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kbackup.archive.restores.plan import UnitRange
from kbackup.jobs.compare.job import ComparedPartition, topic_blocks
from kbackup.kafka.consume import RangeReader
from scripts.dev.kafka import Broker
from tests.integration.backed_up import T0, BackedUp, Run, commit, runner
from tests.integration.conftest import Choose
from tests.integration.topics import delete_topic, produce
from tests.support.kafka_raw import Record as RawRecord
from tests.support.kafka_raw import raw_produce
from tests.support.truth import Records, read_topic


@pytest.fixture
def run(made: BackedUp, spark: SparkSession) -> Run:
    return runner(spark, made.config)


def test_a_restore_is_what_the_archive_holds_until_it_is_changed(
    run: Run, made: BackedUp, broker: Broker, topic_name: str
) -> None:
    restore_id, topic = f"id-{topic_name}", topic_name
    names = ["--map", f"{made.topic}={topic}", "--map-group", f"{made.group}={topic}"]
    code, report = run("restore", *names, "--restore-id", restore_id)
    assert code == 0, report
    ours = ["verify", "--against", "target", "--restore-id", restore_id]
    code, report = run(*ours, "--groups", "--exact")
    assert (code, report["findings"], report["notes"], report["partitions"]) == (0, [], [], [])
    assert (report["records"], report["same"], report["partitions_compared"]) == (180, 180, 3)
    assert [(t["target"], t["records"], t["ok"]) for t in report["topics"]] == [(topic, 180, True)]
    stands = {(g["partition"], g["committed"], g["due"], g["found"], g["how"]) for g in report["groups"]}
    assert all(g["ok"] and g["group"] == topic for g in report["groups"])
    assert {(p, c, how) for p, c, _, _, how in stands} == {(0, 40, "exact"), (1, 30, "log end")}
    elsewhere = ["--set", "target.bootstrap.servers=127.0.0.1:1", "--bootstrap-server", broker.bootstrap]
    code, report = run(*ours, *elsewhere)
    assert (code, report["same"]) == (0, 180)
    code, report = run("verify", "--against", "target", "--map", f"{made.topic}={topic}")  # by names alone
    assert (code, report["records"], report["same"], report["restore_id"]) == (0, 180, 180, None)

    commit(broker, topic, topic, {0: 39})
    code, report = run(*ours, "--groups")
    assert (code, report["findings"]) == (3, [f"group {topic} has offset 39 in {topic}-0, not offset 40 (exact)"])

    # records of other producers are findings only with --exact
    produce(broker, topic, 1, [b"theirs"] * 4)
    produce(broker, topic, 2, [b"theirs"])  # where nothing was restored to
    code, report = run(*ours)
    assert (code, report["findings"], report["after"]) == (0, [], 5)
    assert [note.partition(":")[0] for note in report["notes"]] == [f"{topic}-1", f"{topic}-2"]
    code, report = run(*ours, "--exact")
    assert (code, len(report["findings"])) == (3, 2)

    delete_topic(broker, topic)
    code, report = run(*ours)
    assert (code, report["counts"]) == (3, {"missing": 180})
    assert report["findings"][0] == f"topic {topic} is not in the target cluster"
    assert [t["ok"] for t in report["topics"]] == [False]


def test_the_source_is_what_the_archive_holds(run: Run) -> None:
    code, report = run("verify", "--against", "source", "--restore-point", "1")
    assert (code, report["findings"], report["records"], report["same"]) == (0, [], 130, 130)
    (note,) = report["notes"]
    assert "records in the source are newer than restore point 1" in note, "they are counted, not compared"


def _raw(records: Records, partition: int) -> list[RawRecord]:
    held = records[partition]
    return [(r.key, r.value, r.timestamp or 0, [(k.encode(), v) for k, v in r.headers]) for r in held]


def _copy(broker: Broker, source: str, to: str, change: Callable[[list[RawRecord]], None], **config: str) -> None:
    """`source` as `to`, its partition 0 changed on the way."""
    held = read_topic(broker.bootstrap, source)
    broker.create_topic(to, 3, config=config)
    first = _raw(held, 0)
    change(first)
    for partition, records in ((0, first), (1, _raw(held, 1))):
        raw_produce(broker.bootstrap, to, partition, records)


def test_each_change_of_a_doctored_copy_is_found(run: Run, made: BackedUp, broker: Broker, topic_name: str) -> None:
    def doctor(records: list[RawRecord]) -> None:
        def replace(at: int, **new: Any) -> None:
            old = dict(zip(("key", "value", "time", "headers"), records[at], strict=True)) | new
            records[at] = (old["key"], old["value"], old["time"], old["headers"])

        replace(10, value=b"other")
        replace(25, key=None)
        replace(40, headers=[(b"<script>", b"1")])
        replace(55, time=T0)
        replace(70, key=b"70a", value=b"")
        records[85], records[86] = records[86], records[85]
        records.insert(101, records[100])
        del records[121]  # it was 120
        records += [(b"later", b"theirs", T0, [])]

    _copy(broker, made.topic, topic_name, doctor)
    code, report = run("verify", "--against", "target", "--map", f"{made.topic}={topic_name}")
    assert code == 3
    counts = {"value": 2, "key": 2, "headers": 1, "timestamp": 1, "order": 1, "extra": 1, "missing": 1}
    assert report["counts"] == counts
    (partition,) = [p for p in report["partitions"] if p["partition"] == 0]
    changed = {10: ["value"], 25: ["key"], 40: ["headers"], 55: ["timestamp"], 70: ["key", "value"]}
    in_place, others = partition["differences"][:5], partition["differences"][5:]
    assert {d["source"]: d["what"] for d in in_place} == changed
    assert [d["target"] for d in in_place] == [d["source"] for d in in_place]
    order, extra, missing = others
    assert [d["what"] for d in others] == [["order"], ["extra"], ["missing"]]
    assert order["source"] is not None
    assert extra["target"] in (100, 101)
    assert (missing["source"], missing["target"]) == (120, None)
    assert (partition["records"], partition["after"], partition["after_from"]) == (150, 1, 150)
    code, report = run("verify", "--against", "target", "--map", f"{made.topic}={topic_name}", "--show", "2")
    assert (code, report["counts"]) == (3, counts)
    assert sum(len(p["differences"]) for p in report["partitions"]) == 2


def test_the_brokers_own_times_are_left_out_and_that_is_said(
    run: Run, made: BackedUp, broker: Broker, topic_name: str
) -> None:
    _copy(broker, made.topic, topic_name, lambda records: None, **{"message.timestamp.type": "LogAppendTime"})
    code, report = run("verify", "--against", "target", "--map", f"{made.topic}={topic_name}")
    assert (code, report["findings"], report["same"]) == (0, [], 180)
    assert "LogAppendTime" in report["notes"][0]
    assert [t["timestamps"] for t in report["topics"]] == [False]


@pytest.mark.parametrize("kernel", ["native", "python"])
def test_a_partition_is_read_again_from_where_it_is_wanted(
    made: BackedUp, broker: Broker, kernel: str, choose: Choose
) -> None:
    """A comparison that looked too far ahead goes back: by one client, with more of the first reading on its way."""
    choose(kernel)
    part = UnitRange(topic=made.topic, partition=0, target=made.topic, segments=())
    reader = RangeReader({"bootstrap.servers": broker.bootstrap}, "read_committed", "again", 30)
    try:
        opened = topic_blocks(reader, ComparedPartition(part, 0, 0, 150, True, None))
        for start in (0, 40, 149, 0):
            first = opened(0)
            next(first)
            first.close()  # type: ignore[attr-defined]
            assert [o for block in opened(start) for o in block.offsets.tolist()] == list(range(start, 150))
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--against", "target", "--restore-id", "none-of-that-id"), "there is no restore none-of-that-id"),
        (("--against", "target", "--groups"), "groups are compared by a restore's offset map"),
        (("--against", "source", "--restore-id", "x"), "a restore is compared with its target"),
        (("--against", "target", "--quick"), "--quick reads no records"),
        (("--topic", "x"), "options of a comparison need --against"),
        (("--exact",), "options of a comparison need --against"),
    ],
)
def test_unusable_options_of_a_comparison_are_refused(run: Run, args: tuple[str, ...], message: str) -> None:
    code, document = run("verify", *args)
    assert code == 2
    assert message in document["error"]["message"]
