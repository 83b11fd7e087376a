"""A restore cut off half-way and resumed with its id: nothing is lost and nothing is there twice."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.config.models import Restore
from kbackup.errors import MismatchError, RefusedError
from kbackup.jobs.groups.documents import Captures
from kbackup.jobs.groups.undo import GroupsUndo
from kbackup.jobs.restore.report import TransformReport
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from tests.faults.conftest import Counting
from tests.faults.dying import When, Wish
from tests.faults.process import Kbackup, run
from tests.faults.shop import Shop
from tests.faults.trip import Trip
from tests.support.restores import run_restore
from tests.support.truth import Position, commit, in_archive, in_cluster, without_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def trip(shop: Shop, archive: Path) -> Trip:
    return Trip(shop, FileStore(archive))


@pytest.mark.parametrize(
    "wish",
    [
        Wish("kill job", "after", "write restores/*/plan.json"),
        Wish("kill job", "after", "phase create topics"),
        Wish("kill job", "before", "transaction"),
        Wish("kill job", "after", "transaction"),
        pytest.param(Wish("kill job", "before", "transaction", 3), marks=pytest.mark.soak),
        Wish("kill job", "before", "write restores/*/offsets.parquet"),
        Wish("kill job", "before", "write restores/*/report.json"),
        Wish("kill job", "after", "write restores/*/report.json"),
    ],
    ids=lambda wish: wish.name,
)
def test_a_restore_that_was_killed_is_resumed_with_each_record_once(
    wish: Wish, trip: Trip, tmp_path: Path, spark: SparkSession
) -> None:
    trip.die(wish, tmp_path / "dead", spark)
    trip.resume(spark)
    trip.check()
    trip.resume(spark)  # what is finished is told again, not done again
    trip.check()


def test_killed_twice_and_resumed(trip: Trip, tmp_path: Path, spark: SparkSession) -> None:
    """All by the command line; the map is put together from three attempts, whose progress is in three groups."""
    trip.begin(groups=3)
    for number, nth in enumerate((2, 1)):
        trip.die(Wish("kill job", "after", "transaction", nth), tmp_path / f"dead{number}", spark)
    progress = trip.progress(groups=3)
    assert len(progress) > 1, f"groups with progress: {progress}"
    ended = run(tmp_path / "last", trip.arguments)
    assert ended.code == 0, ended.err
    assert ended.document["status"] == "restored"
    trip.check()
    assert trip.progress(groups=3) == set()


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_spark_tries_a_unit_again_whose_worker_died(when: When, trip: Trip, tmp_path: Path) -> None:
    wish = Wish("kill worker", when, "transaction", 2)
    ended = run(tmp_path / "run", trip.arguments, wish)
    assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "moments").stat().st_size >= 2, "nothing was killed"
    trip.check()


def test_two_of_one_id_at_once(trip: Trip, tmp_path: Path, spark: SparkSession) -> None:
    """The one that came first sleeps in a transaction; the other finishes; what the first had open is gone."""
    with Kbackup(tmp_path / "first", trip.arguments, Wish("pause", "before", "transaction", 2)) as first:
        first.wait_paused()
        trip.resume(spark)
        trip.check()
        first.signal(signal.SIGCONT)
        ended = first.wait()
    assert ended.code == 1, ended.err
    assert "another restore with the same id has taken over" in ended.err
    trip.check()


def test_resumed_from_another_archive(
    trip: Trip, shop: Shop, tmp_path: Path, spark: SparkSession, books: tuple[Shop, Path]
) -> None:
    """The state of a restore lies apart from the archive; the archive is another one by now."""
    from kbackup.jobs.backup.job import backup
    from tests.faults.conftest import options

    state = FileStore(tmp_path / "state")
    trip.die(Wish("kill job", "after", "write restores/*/plan.json"), tmp_path / "dead", spark, state)
    other = FileStore(tmp_path / "other")
    backup(options(shop), shop.broker.client(), other, lambda: spark, Counting())
    with pytest.raises(RefusedError, match="was begun from another archive"):
        run_restore(trip.options, shop.broker.client(), other, state, lambda: spark, Counting())


def test_a_resume_after_its_progress_is_gone_is_refused(trip: Trip, tmp_path: Path, spark: SparkSession) -> None:
    """As after the target's offsets.retention.minutes: what is committed would be there twice."""
    trip.die(Wish("kill job", "after", "transaction", 2), tmp_path / "dead", spark)
    cluster = Cluster(trip.broker.client(), "target")
    group = layout.progress_group(trip.id)
    cluster.groups.delete([group])
    before = in_cluster(trip.broker.bootstrap, [f"{trip.id}-{t}" for t in trip.shop.topics])
    with pytest.raises(RefusedError, match=rf"target topic {trip.id}-.* holds records that are not in the progress"):
        trip.resume(spark)
    after = in_cluster(trip.broker.bootstrap, [f"{trip.id}-{t}" for t in trip.shop.topics])
    assert {tp: rows for tp, rows in after.items() if before.get(tp)} == {
        tp: rows for tp, rows in before.items() if rows
    }


def test_a_resume_into_a_topic_with_records_of_others_is_refused(
    trip: Trip, tmp_path: Path, spark: SparkSession
) -> None:
    """As by a plan that somebody else has written into the bucket, under an id that is always the same."""
    trip.die(Wish("kill job", "after", "write restores/*/plan.json"), tmp_path / "dead", spark)
    topic = f"{trip.id}-{trip.shop.topics[0]}"
    trip.broker.create_topic(topic, 8)
    producer = Producer(trip.broker.client())
    producer.produce(topic, b"precious", partition=0)
    assert producer.flush() == 0
    with pytest.raises(RefusedError, match=rf"target topic {topic} holds records that are not in the progress"):
        trip.resume(spark)
    assert [row.value for rows in in_cluster(trip.broker.bootstrap, [topic]).values() for row in rows] == [b"precious"]


LOW, HIGH = 10**12 + 37, 10**12 + 480


def _skips(store: Store) -> tuple[list[str], set[tuple[TopicPartition, int]]]:
    """Skip the record in the middle of the window of each partition."""
    within = {tp: [r for r in rows if LOW <= (r.timestamp or 0) <= HIGH] for tp, rows in in_archive(store).items()}
    skipped = {(tp, rows[len(rows) // 2].offset) for tp, rows in within.items() if rows}
    return [f"{tp.topic}:{tp.partition}:{offset}" for tp, offset in skipped], skipped


MASK = """
import pyarrow as pa
import pyarrow.compute as pc

def mask(batch):
    kept = batch.filter(pa.array([offset % 3 != 1 for offset in batch.column("offset").to_pylist()]))
    masked = pc.if_else(pc.is_valid(kept.column("value")), pa.scalar(b"masked", pa.large_binary()), None)
    return kept.set_column(4, "value", masked)
"""


def test_a_restore_that_was_killed_goes_on_with_the_same_function_alone(
    shop: Shop, archive: Path, tmp_path: Path, spark: SparkSession
) -> None:
    store, id_ = FileStore(archive), f"masked-{secrets.token_hex(4)}"
    file, other = tmp_path / "mask.py", tmp_path / "other.py"
    file.write_text(MASK)
    other.write_text(MASK + "\n")
    arguments = [
        *("restore", "--json", store.url, f"--bootstrap-server={shop.broker.bootstrap}", "--no-groups"),
        *(f"--map-regex=^={id_}-", f"--restore-id={id_}", f"--transform={file}:mask"),
        *("--set=restore.transaction_bytes=4000", "--set=spark.master=local[2]"),
    ]
    dead = run(tmp_path / "dead", arguments, Wish("kill job", "after", "transaction", 3))
    assert dead.code == -9, dead.err
    options = Restore(
        restore_id=id_, map_regex=(f"^={id_}-",), no_groups=True, transaction_bytes=4000, transform=f"{file}:mask"
    )
    target = shop.broker.client()
    for given, words in ((f"{other}:mask", "now other.py:mask"), (None, "now without one")):
        with pytest.raises(MismatchError, match=rf"begun with transform mask.py:mask \(sha256 \w+\), {words}"):
            run_restore(replace(options, transform=given), target, store, store, lambda: spark, Counting())
    report = run_restore(options, target, store, store, lambda: spark, Counting())

    archived = in_archive(store)
    left_out = {tp.topic: 0 for tp in archived}
    expected = {}
    for tp, rows in archived.items():
        kept = [row for row in rows if row.offset % 3 != 1]
        left_out[tp.topic] += len(rows) - len(kept)
        masked = [row._replace(value=None if row.value is None else b"masked") for row in kept]
        expected[tp._replace(topic=f"{id_}-{tp.topic}")] = [row[1:] for row in masked]
    assert without_offsets(in_cluster(shop.broker.bootstrap, {tp.topic for tp in expected})) == expected
    assert isinstance(report.transform, TransformReport)
    assert report.transform.left_out == {topic: records for topic, records in left_out.items() if records}


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param(Wish("kill job", "before", "transaction", 2), marks=pytest.mark.soak),
        Wish("kill job", "after", "transaction", 3),
    ],
    ids=lambda wish: wish.name,
)
def test_a_window_is_killed_and_resumed(
    wish: Wish, shop: Shop, archive: Path, tmp_path: Path, spark: SparkSession
) -> None:
    store, id_ = FileStore(archive), f"window-{secrets.token_hex(4)}"
    skips, left_out = _skips(store)
    arguments = [
        *("restore", "--json", store.url, f"--bootstrap-server={shop.broker.bootstrap}", "--no-groups"),
        *(f"--map-regex=^={id_}-", f"--restore-id={id_}", f"--from-time={LOW}", f"--to-time={HIGH}"),
        *(f"--skip={skip}" for skip in skips),
        "--where=.offset % 3 != 1",
        *("--set=restore.transaction_bytes=4000", "--set=spark.master=local[2]"),
    ]
    dead = run(tmp_path / "dead", arguments, wish)
    assert dead.code == -9, dead.err
    options = Restore(
        restore_id=id_,
        map_regex=(f"^={id_}-",),
        from_time=str(LOW),
        to_time=str(HIGH),
        skip=tuple(skips),
        where=".offset % 3 != 1",
        no_groups=True,
        transaction_bytes=4000,
    )
    target = shop.broker.client()
    with pytest.raises(MismatchError, match="begun with other options: from_time was"):
        run_restore(replace(options, from_time="2h ago"), target, store, store, lambda: spark, Counting())
    report = run_restore(options, target, store, store, lambda: spark, Counting())
    assert report.choice is not None
    assert (report.choice.from_time, report.choice.to_time) == (LOW, HIGH)

    expected = {
        tp._replace(topic=f"{id_}-{tp.topic}"): [
            r[1:]
            for r in rows
            if LOW <= (r.timestamp or 0) <= HIGH and (tp, r.offset) not in left_out and r.offset % 3 != 1
        ]
        for tp, rows in in_archive(store).items()
    }
    topics = sorted({tp.topic for tp in expected if expected[tp]})
    found = without_offsets(in_cluster(shop.broker.bootstrap, topics))
    assert found == {tp: rows for tp, rows in expected.items() if tp.topic in topics}
    assert 0 < report.records == sum(map(len, expected.values())) < HIGH - LOW + 1 - len(left_out)


@pytest.mark.parametrize(
    "wish",
    [
        Wish("kill job", "after", "write restores/*/groups-before-1.json"),
        Wish("kill job", "before", "write restores/*/report.json"),
    ],
    ids=lambda wish: wish.name,
)
def test_undo_after_a_restore_that_was_killed_while_it_set_groups(
    wish: Wish, shop: Shop, archive: Path, tmp_path: Path, spark: SparkSession
) -> None:
    trip = Trip(shop, FileStore(archive))
    cluster, group = Cluster(shop.broker.client(), "target"), f"{trip.id}-group"
    own = next(iter(shop.committed))
    commit(shop.broker.bootstrap, group, {own: Position(1)})
    before, _ = cluster.groups.committed([group])
    assert [(c.tp, c.offset) for c in before[group]] == [(own, 1)]
    trip.die(wish, tmp_path / "dead", spark)
    trip.resume(spark)
    trip.check()
    journal = RestoreJournal(trip.store, trip.id)
    assert Captures(journal).numbers() == [1, 2]
    report = journal.undo(GroupsUndo(cluster, journal), confirm=True, accept_unproven=False)
    assert [(g.group, g.status) for g in report.groups] == [(group, "put back")]
    assert cluster.groups.committed([group])[0] == before
