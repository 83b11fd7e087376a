"""Restores of a moment, of a window and of offsets: record by record and group by group, from an archive of three
runs with timestamps in any order, transactions, and topics that came, grew, went and were made anew in between."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore
from kbackup.jobs.compare.job import CompareRequest, verify_against
from scripts.dev.kafka import Broker
from tests.faults.conftest import Counting
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.test_restore import AS_THEY_ARE
from tests.integration.zoo import Zoo
from tests.support.kafka_raw import NO_TIMESTAMP, raw_produce
from tests.support.kafka_raw import Record as RawRecord
from tests.support.truth import (
    Position,
    Records,
    assert_restored,
    commit,
    expected_offset,
    log_ends,
    positions,
    read_topic,
)
from tests.unit.formats.reference import Record

SPREAD = 300_000  # ms around now
UNTIMED = 5
KEEP = "--topic-config=message.timestamp.after.max.ms=9223372036854775807"


@dataclass
class History:
    """`moment` lies between the first and the second run; `held` is all that the source ever had, the first
    incarnation of `again`; `stood` is where the group was at the first run."""

    broker: Broker
    archive: Archive
    prefix: str
    moment: int = 0
    began: int = 0
    held: dict[str, Records] = field(default_factory=dict)
    stood: dict[tuple[str, int], Position] = field(default_factory=dict)

    def topic(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    @property
    def group(self) -> str:
        return f"{self.prefix}-group"

    def fill(self, name: str, partition: int, count: int, low: int, high: int) -> None:
        """Records with timestamps of any order, in batches."""
        dice = random.Random(f"{name} {partition} {count}")
        rows: list[RawRecord] = [(b"k%d" % n, b"value %d " % n * 4, dice.randint(low, high), []) for n in range(count)]
        for at in range(0, count, 50):
            raw_produce(self.broker.bootstrap, self.topic(name), partition, rows[at : at + 50])

    def around(self, name: str, partition: int, count: int) -> None:
        self.fill(name, partition, count, self.began - SPREAD, self.began + SPREAD)

    def read(self, name: str) -> Records:
        return read_topic(self.broker.bootstrap, self.topic(name))


@pytest.fixture(scope="module")
def history(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]) -> History:
    made = History(broker, new_archive(), f"time-{secrets.token_hex(4)}")
    made.began = int(time.time() * 1000)
    selection = ["-t", f"/{made.prefix}-.*/", "-g", made.group]
    _first(made)
    kbackup.backup(made.archive, *selection)
    time.sleep(0.01)
    made.moment = int(time.time() * 1000)
    time.sleep(0.01)
    _second(made)
    kbackup.backup(made.archive, *selection, code=3)  # a topic was made anew
    _third(made)
    kbackup.backup(made.archive, *selection)
    made.held |= {name: made.read(name) for name in ("events", "new", "future")}
    return made


def _first(made: History) -> None:
    for name, partitions in (("events", 2), ("gone", 1), ("again", 1)):
        made.broker.create_topic(made.topic(name), partitions, config=topics.ANY_FUTURE)
    made.around("events", 0, 300)
    topics.committed(made.broker, made.topic("events"), 0, topics.numbered(30, "kept"))
    topics.aborted(made.broker, made.topic("events"), 0, topics.numbered(20, "never"))
    raw_produce(made.broker.bootstrap, made.topic("events"), 0, [(b"k", b"v", NO_TIMESTAMP, [])] * UNTIMED)
    made.around("events", 1, 60)
    made.around("gone", 0, 40)
    made.around("again", 0, 40)
    ends = log_ends(made.broker.bootstrap, made.topic("events"))
    selected = {("events", 0): 170, ("events", 1): ends[1], ("gone", 0): 7, ("again", 0): 11}
    stands = {(made.topic(t), p): Position(o, f"{t} ü") for (t, p), o in selected.items()}
    commit(made.broker.bootstrap, made.group, stands)
    made.stood = stands
    made.held = {name: made.read(name) for name in ("gone", "again")}


def _second(made: History) -> None:
    """Change the topics between the moment and the next run, with timestamps before and after the moment."""
    broker, topic = made.broker, made.topic
    made.around("events", 0, 200)
    topics.delete_topic(broker, topic("gone"))
    topics.delete_topic(broker, topic("again"))
    broker.create_topic(topic("again"), 1, config=topics.ANY_FUTURE)
    made.around("again", 0, 30)
    topics.add_partitions(broker, topic("events"), 4)
    made.around("events", 2, 80)
    broker.create_topic(topic("new"), 1, config=topics.ANY_FUTURE)
    made.around("new", 0, 50)
    broker.create_topic(topic("future"), 1, config=topics.ANY_FUTURE)
    made.fill("future", 0, 20, made.moment + SPREAD, made.moment + 2 * SPREAD)
    commit(broker.bootstrap, made.group, {(topic("events"), 0): Position(500), (topic("new"), 0): Position(3)})


def _third(made: History) -> None:
    """Segments of the future, and within them one record that comes very late."""
    made.fill("events", 0, 200, made.moment + SPREAD, made.moment + 2 * SPREAD)
    raw_produce(made.broker.bootstrap, made.topic("events"), 0, [(b"late", b"v", made.began - 2 * SPREAD, [])])
    made.fill("events", 0, 150, made.moment + SPREAD, made.moment + 2 * SPREAD)


def _in_time(record: Record, low: int, high: int) -> bool:
    return record.timestamp is not None and low <= record.timestamp <= high


def _cut(held: Records, keep: Callable[[int, Record], bool]) -> Records:
    return {p: [r for r in rows if keep(p, r)] for p, rows in held.items()}


def _check_groups(
    made: History, prefix: str, selected: dict[str, Records], stood: dict[tuple[str, int], Position]
) -> None:
    """Compare the groups' positions with those expected; `selected` are the records to restore, by topic."""
    stand = positions(made.broker.bootstrap, f"{prefix}{made.group}")
    expected = {}
    for name, held in selected.items():
        target = f"{prefix}{made.topic(name)}"
        found, ends = read_topic(made.broker.bootstrap, target), log_ends(made.broker.bootstrap, target)
        for partition, records in held.items():
            if at := stood.get((made.topic(name), partition)):
                offset = expected_offset(at.offset, records, found[partition], ends[partition])
                expected[target, partition] = Position(offset, at.metadata)
    # confluent-kafka commits metadata with the NUL that ends a text in C
    assert {tp: p._replace(metadata=p.metadata.removesuffix("\0")) for tp, p in stand.items()} == expected


def _arguments(made: History, prefix: str) -> list[str]:
    renamed = [f"--map-group={made.group}={prefix}{made.group}", f"--restore-id={prefix}{made.prefix}"]
    return [f"--map-regex=^={prefix}", KEEP, *renamed]


def test_up_to_a_moment(history: History, kbackup: Kbackup) -> None:
    """Restored are a deleted topic, the first incarnation of another, a new topic, and partitions with records."""
    arguments = ["--to-time", str(history.moment), *_arguments(history, "upto.")]
    dry = kbackup("restore", history.archive.url, *arguments, "--dry-run")
    planned = dry.document
    report = kbackup.restore(history.archive, *arguments)
    names = ("again", "events", "gone", "new")
    selected = {name: _cut(history.held[name], lambda _, r: _in_time(r, 0, history.moment)) for name in names}
    del selected["events"][3]  # added later, and empty
    assert {t["source"]: t["records"] for t in report["topics"]} == {
        history.topic(name): sum(map(len, held.values())) for name, held in selected.items()
    }
    for name, held in selected.items():
        assert_restored(held, read_topic(history.broker.bootstrap, f"upto.{history.topic(name)}"))
    assert any(r.key == b"late" for r in selected["events"][0])
    _check_groups(history, "upto.", selected, history.stood)

    choice = report["choice"]
    assert planned["choice"] == choice
    assert all(words in dry.err for words in [*choice["notes"], *choice["left_out"]])
    assert report["records"] <= planned["records"] < sum(map(len, history.held["events"].values())) + 200
    assert (choice["as_of"], choice["groups_as_of"], choice["to_time"]) == (1, 1, history.moment)
    anew, gone = choice["left_out"]
    assert anew.startswith(f"topic {history.topic('again')} was created again later (incarnation 2)")
    assert gone.startswith("restore point 3 has topics as of restore point 1, which was begun at ")
    assert gone.endswith(f"before the window ends, without later records: {history.topic('gone')}")
    assert {anew, gone} <= set(report["warnings"])
    assert [w for w in report["warnings"] if f"at least {UNTIMED} record(s) without a timestamp" in w]


def test_a_window_and_its_plan(history: History, kbackup: Kbackup) -> None:
    """From the middle of everything on; nothing was captured before its end but topics of the first run."""
    low, high = history.began - SPREAD // 3, history.began
    arguments = ["--from-time", str(low), "--to-time", str(high), *_arguments(history, "window.")]
    refused = kbackup.restore(history.archive, *arguments, code=2)["error"]["message"]
    assert refused.startswith(f"group {history.group} can't be restored: no restore point was captured at or before ")
    arguments = [each for each in arguments if not each.startswith("--map-group=")]
    report = kbackup.restore(history.archive, *arguments, "--set=restore.transaction_bytes=2000")
    names = ("again", "events", "gone")
    selected = {name: _cut(history.held[name], lambda _, r: _in_time(r, low, high)) for name in names}
    selected["events"] = {p: selected["events"][p] for p in (0, 1, 2)}
    for name, held in selected.items():
        assert_restored(held, read_topic(history.broker.bootstrap, f"window.{history.topic(name)}"))
    assert report["groups"] == []
    assert [n for n in report["choice"]["notes"] if n.startswith("no restore point was captured at or before")]
    assert [w for w in report["warnings"] if f"topic {history.topic('new')} was first captured later" in w]

    key = layout.restore_key(report["restore_id"], layout.PLAN)
    plan = load(RestorePlan, history.archive.store.get(key), key)
    assert plan.choice is not None
    assert plan.choice.notes == tuple(report["choice"]["notes"])
    windows = {(p.window.from_time, p.window.to_time) for unit in plan.units for p in unit if p.window}
    assert windows == {(low, high)}
    store = history.archive.store
    request = CompareRequest("target", Restore(restore_id=report["restore_id"]), groups=False, exact=True, show=5)
    session = lambda: kbackup.spark.session  # noqa: E731
    compared = verify_against(request, history.broker.client(), store, store, session, Counting())
    assert (compared.findings, compared.records, compared.same) == ((), report["records"], report["records"])


def test_a_restore_takes_the_selected_ranges_of_offsets(history: History, kbackup: Kbackup) -> None:
    topic, archived = history.topic("events"), history.held["events"]
    end = archived[2][-1].offset + 1
    ranges = [f"{topic}:0:150-330", f"{topic}:0:320-360", f"{topic}:2:70-", f"{topic}:0:-3"]
    named = [argument for text in ranges for argument in ("--range", text)]
    report = kbackup.restore(history.archive, *named, *_arguments(history, "range."))

    def keep(partition: int, record: Record) -> bool:
        inside = [range(3), range(150, 360)] if partition == 0 else [range(70, end)] if partition == 2 else []
        return any(record.offset in rows for rows in inside)

    selected = {"events": _cut(archived, keep)}
    assert_restored(selected["events"], read_topic(history.broker.bootstrap, f"range.{topic}"))
    assert report["records"] == sum(map(len, selected["events"].values()))
    assert any(r.timestamp is None for r in selected["events"][0])
    _check_groups(history, "range.", selected, {(topic, 0): Position(500)})
    refused = kbackup.restore(history.archive, "--range", f"{topic}:2:0-{end + 1}", "--dry-run", code=2)
    assert f"{topic}-2 is archived from 0 to {end} (exclusive)" in refused["error"]["message"]


def test_info_says_what_would_come_back(history: History, kbackup: Kbackup) -> None:
    arguments = ["--to-time", str(history.moment), *_arguments(history, "dry.")]
    planned = kbackup.restore(history.archive, *arguments, "--dry-run")
    info = ("info", "--archive", history.archive.url, "--to-time", str(history.moment))
    report = kbackup.run(*info)
    assert report["choice"] == planned["choice"]
    assert {t["name"]: (len(t["partitions"]), t["sums"]["records"]) for t in report["topics"]} == {
        t["source"]: (t["partitions"], t["records"]) for t in planned["topics"]
    }
    assert (report["restore_point"], report["groups"]) == (1, [history.group])
    one = kbackup.run(*info, history.topic("gone"))
    assert [(g["group"], g["offset"]) for g in one["topic"]["groups"]] == [(history.group, 7)]


def test_a_restore_point_has_no_topic_that_came_later(history: History, kbackup: Kbackup) -> None:
    planned = kbackup.restore(history.archive, "--restore-point", "1", *_arguments(history, "one."), "--dry-run")
    assert [t["source"] for t in planned["topics"]] == [history.topic(name) for name in ("again", "events", "gone")]
    assert planned["choice"] is None


def test_compacted_stamped_and_odd_records_and_transactions(zoo: Zoo, kbackup: Kbackup) -> None:
    """Bounds that are timestamps of records: both are included. `stamped` has the broker's own times, far later."""
    low, high = 1_600_000_000_001, 1_700_000_060_000
    names = ["compacted", "ledger", "odd", "overtaken", "reborn", "stamped", "trimmed"]
    named = [argument for name in names for argument in ("-t", zoo.topic(name))]
    bounds = ["--from-time", str(low), "--to-time", str(high), "--map-regex=^=cut.", "--no-groups"]
    report = kbackup.restore(zoo.archive, *named, *bounds, *AS_THEY_ARE)
    compared = {}
    for name in names:
        held = zoo.held(name, 1 if name == "reborn" else 3)
        selected = _cut(held, lambda _, r: _in_time(r, low, high))
        assert_restored(selected, read_topic(zoo.broker.bootstrap, f"cut.{zoo.topic(name)}"))
        compared[name] = sum(map(len, held.values())) - sum(map(len, selected.values()))
    assert [name for name in names if not compared[name]] == ["ledger", "overtaken", "reborn", "trimmed"]
    assert compared["stamped"] == 21
    assert (report["choice"]["as_of"], report["choice"]["groups_as_of"]) == (None, None)
    (anew,) = report["choice"]["left_out"]
    assert f"topic {zoo.topic('reborn')} was " in anew


@pytest.mark.parametrize("first", [500, 360])
def test_skipped_records_and_the_group_on_one(history: History, kbackup: Kbackup, first: int) -> None:
    """The group stands on offset 500 of partition 0: it goes to the next record, or stays on its own."""
    topic, prefix = history.topic("events"), f"skip{first}-{secrets.token_hex(3)}-"
    skips = [f"--skip={topic}:0:{first}", f"--skip={topic}:1:5-9"]
    names = [f"--map={topic}={prefix}{topic}", f"--map-group={history.group}={prefix}{history.group}"]
    report = kbackup.restore(history.archive, "-t", topic, *skips, *names, KEEP)
    expected = _cut(
        history.held["events"], lambda p, r: not ((p == 0 and r.offset == first) or (p == 1 and 5 <= r.offset < 9))
    )
    restored = read_topic(history.broker.bootstrap, f"{prefix}{topic}")
    assert_restored(expected, restored)
    assert report["records"] == sum(map(len, expected.values())) == sum(map(len, history.held["events"].values())) - 5
    assert report["choice"]["skipped"] == [f"{topic}:0:{first}", f"{topic}:1:5-9"]
    due = next(n for n, r in enumerate(expected[0]) if r.offset >= 500)
    stands = positions(history.broker.bootstrap, f"{prefix}{history.group}")
    assert stands[f"{prefix}{topic}", 0].offset == restored[0][due].offset


def test_an_expression_selects_records_and_the_dry_run_counts_them(history: History, kbackup: Kbackup) -> None:
    topic, name = history.topic("events"), f"where-{secrets.token_hex(3)}"
    expression = '.value | tostring | startswith("value 1")'
    where = ["-t", topic, "--where", expression, f"--map={topic}={name}", "--no-groups"]
    expected = _cut(history.held["events"], lambda p, r: (r.value or b"").startswith(b"value 1"))
    records = sum(map(len, expected.values()))
    assert records
    assert kbackup.restore(history.archive, *where, KEEP, "--dry-run")["records"] == records
    assert kbackup.restore(history.archive, *where, KEEP, "--restore-id", name)["records"] == records
    assert_restored(expected, read_topic(history.broker.bootstrap, name))
    same = kbackup.run("verify", "--archive", history.archive.url, "--against", "target", "--restore-id", name)
    assert same["findings"] == []


def test_a_window_in_time_is_counted_exactly(history: History, kbackup: Kbackup) -> None:
    topic = history.topic("events")
    until = ["-t", topic, f"--to-time={history.moment}", "--map-regex=^=count-", "--no-groups", KEEP, "--dry-run"]
    most, exact = (kbackup.restore(history.archive, *until, *count)["records"] for count in ((), ("--count",)))
    rows = _cut(history.held["events"], lambda p, r: _in_time(r, 0, history.moment))
    assert most > exact == sum(map(len, rows.values()))
    shown = kbackup.run("info", topic, "-a", history.archive.url, f"--to-time={history.moment}", "--count")
    assert shown["topic"]["sums"]["records"] == exact
