"""Ctrl-C and SIGTERM in the middle of a run: what is left, and that the command that is printed goes on."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kbackup.archive import layout
from kbackup.archive.lease import read_lease
from kbackup.archive.models import load
from kbackup.archive.reader import open_archive
from kbackup.jobs.drill.report import DrillReport
from kbackup.store.file import FileStore
from tests.faults.conftest import BackUp, backup_arguments
from tests.faults.dying import Act, When, Wish
from tests.faults.process import Ended, Kbackup, run
from tests.faults.shop import Shop, check_archive
from tests.support.truth import group_names, in_cluster


def printed_command(ended: Ended) -> list[str]:
    """Return the command in the hint of an interrupted run, without what made that run die."""
    hint = ended.document["error"]["hint"]
    words = shlex.split(hint[hint.index("kbackup ") :])
    at = next(number for number, word in enumerate(words) if "dying_daemon" in word)
    return words[: at - 1] + words[at + 1 :]


def interrupt(folder: Path, arguments: Sequence[str], event: str, *, nth: int = 1, when: When = "after") -> Ended:
    """Run a command and interrupt it at an event. It ends with the code of an interrupt, and without a traceback."""
    ended = run(folder, arguments, Wish("interrupt", when, event, nth))
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert ended.document["error"]["message"].startswith("interrupted: ")
    return ended


def go_on(folder: Path, ended: Ended) -> Ended:
    """Run the command that an interrupted run printed: it succeeds."""
    again = run(folder, printed_command(ended)[1:])
    assert again.code == 0, again.err
    return again


@pytest.mark.parametrize(
    ("event", "act"),
    [
        pytest.param("phase discover", "interrupt", marks=pytest.mark.soak),
        pytest.param("phase discover", "terminate", marks=pytest.mark.soak),
        ("phase discover", "terminate all"),
        ("write topics/*_index", "interrupt"),
        pytest.param("write topics/*_index", "terminate", marks=pytest.mark.soak),
        pytest.param("write topics/*_index", "terminate all", marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_backup_cleans_up(
    act: Act, event: str, archive: Path, tmp_path: Path, shop: Shop, back_up: BackUp
) -> None:
    store = FileStore(archive)
    wish = Wish(act, "after", event)
    ended = run(tmp_path / "run", backup_arguments(shop, str(archive), lease_seconds=600), wish)
    assert ended.code == 130, ended.err
    assert "kbackup: interrupted: no restore point was made" in ended.err
    assert "Traceback" not in ended.err
    assert ended.document["error"]["exit_code"] == 130
    assert printed_command(ended)[1:] == backup_arguments(shop, str(archive), lease_seconds=600)
    assert read_lease(store)[0].released, "the lease is given back"
    assert [m.number for m in open_archive(store).restore_points] == [1]
    back_up(store)
    check_archive(store, shop)


@pytest.mark.parametrize(
    ("when", "event", "message", "hint"),
    [
        pytest.param(
            "before",
            "phase commit",
            "all records were read, and whole segments of them stay",
            "to go on, without reading",
            marks=pytest.mark.soak,
        ),
        ("after", "phase commit", "whether the restore point is committed shows 'kbackup list'", "if it is not: "),
        pytest.param(
            "after",
            "phase refresh derived files",
            "the restore point is committed",
            "nothing is left to do",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_an_interrupted_backup_says_whether_there_is_a_restore_point(
    when: When, event: str, message: str, hint: str, archive: Path, tmp_path: Path, shop: Shop
) -> None:
    ended = interrupt(tmp_path / "run", backup_arguments(shop, str(archive)), event, when=when)
    error = ended.document["error"]
    assert message in error["message"]
    assert error["hint"].startswith(hint)
    points = [point.number for point in open_archive(FileStore(archive)).restore_points]
    assert points == ([1] if when == "before" else [1, 2])


def test_an_interrupted_restore_goes_on_with_the_command_that_it_prints(
    archive: Path, tmp_path: Path, shop: Shop
) -> None:
    arguments = [
        *("restore", "--json", str(archive), f"--bootstrap-server={shop.broker.bootstrap}", "--to-time=1 minute ago"),
        *(
            "--map-regex=^=gone-on-",
            "--no-groups",
            "--set=restore.transaction_bytes=4KiB",
            "--set=spark.master=local[2]",
        ),
    ]
    ended = interrupt(tmp_path / "first", arguments, "transaction", nth=2)
    assert re.search(r"restore \S+ is not finished: about \d", ended.document["error"]["message"])
    assert any(word.startswith("--restore-id=") for word in printed_command(ended))
    report = go_on(tmp_path / "second", ended).document
    restored = sum(topic["records"] for topic in report["topics"])
    assert restored == report["records"] > 0
    assert visible_records(shop, "gone-on-") == restored, "each record is there once"


def test_a_restore_that_is_interrupted_in_its_preflight_has_written_nothing(
    archive: Path, tmp_path: Path, shop: Shop
) -> None:
    arguments = [
        *("restore", "--json", str(archive), f"--bootstrap-server={shop.broker.bootstrap}"),
        *("--map-regex=^=never-", "--no-groups", "--set=spark.master=local[2]"),
    ]
    ended = interrupt(tmp_path / "run", arguments, "phase preflight")
    assert ended.document["error"]["message"] == "interrupted: nothing was written to the target"
    assert not [name for name in names(shop) if name.startswith("never-")]


def test_an_interrupted_verification_changes_nothing(archive: Path, tmp_path: Path) -> None:
    arguments = ["verify", str(archive), "--json", "--set=spark.master=local[2]"]
    ended = interrupt(tmp_path / "run", arguments, "phase read segments")
    error = ended.document["error"]
    assert error["message"] == "interrupted: nothing was changed, and no result is recorded"
    assert printed_command(ended)[1:] == arguments
    assert list(FileStore(archive).list(layout.VERIFICATIONS)) == []


def test_an_interrupted_copy_goes_on_with_the_command_that_it_prints(archive: Path, tmp_path: Path) -> None:
    arguments = ["copy", str(tmp_path / "copy"), "--archive", str(archive), "--json"]
    ended = interrupt(tmp_path / "first", arguments, "write topics/*_index*", nth=2)
    assert "is a whole archive as before; the objects that were sent stay" in ended.document["error"]["message"]
    report = go_on(tmp_path / "second", ended).document
    assert report["newest"] == 1
    assert report["found"] > 0


@pytest.mark.parametrize(
    ("event", "message"),
    [("phase choose", "nothing was changed"), ("phase find orphans", "what was to expire has expired, but not all")],
)
def test_an_interrupted_expiration_says_whether_anything_expired(
    event: str, message: str, archive: Path, tmp_path: Path, back_up: BackUp
) -> None:
    back_up(FileStore(archive))
    arguments = ["expire", str(archive), "--keep-last=1", "--confirm", "--json"]
    ended = interrupt(tmp_path / "first", arguments, event)
    assert message in ended.document["error"]["message"]
    go_on(tmp_path / "second", ended)
    assert [point.number for point in open_archive(FileStore(archive)).restore_points] == [2]


def test_an_interrupted_export_goes_on_with_the_command_that_it_prints(archive: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    arguments = ["export", f"--parquet={lake}", f"--archive={archive}", "--json", "--set=spark.master=local[2]"]
    ended = interrupt(tmp_path / "first", arguments, "phase plan")
    assert "has whole restore points: what was written stays" in ended.document["error"]["message"]
    (report,) = go_on(tmp_path / "second", ended).document["exports"]
    assert report["restore_point"] == 1


def test_a_follower_says_at_the_first_signal_that_it_stops_and_at_the_second_what_is_left(
    archive: Path, tmp_path: Path, shop: Shop
) -> None:
    arguments = [*backup_arguments(shop, str(archive)), "--follow", "--interval=1s"]
    # Paused before its commit, it gets both signals: the first asks for a last round, the second ends the work.
    with Kbackup(tmp_path / "run", arguments, Wish("pause", "before", "phase commit")) as process:
        process.wait_paused()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, number)
        process.signal(signal.SIGCONT)
        ended = process.wait()
    assert ended.code == 130, ended.err
    assert "stopping: a last round archives what is new; Ctrl-C again stops at once\n" in ended.err
    assert ended.document["error"]["message"] == (
        "interrupted: the newest restore point is 1; later records are not archived"
    )
    assert printed_command(ended)[1:] == arguments


PREFIX = "interrupted."


def arguments(shop: Shop, archive: Path) -> list[str]:
    return [
        "drill",
        "--json",
        f"--archive={archive}",
        f"--bootstrap-server={shop.broker.bootstrap}",
        "--set=spark.master=local[2]",
        "--set=restore.transaction_bytes=4KiB",
        "--on-source",
        f"--prefix={PREFIX}",
    ]


def visible_records(shop: Shop, prefix: str) -> int:
    """Return how many records consumers see in all topics with a prefix."""
    there = AdminClient(shop.broker.client()).list_topics(timeout=30).topics
    restored = [name for name in there if name.startswith(prefix)]
    return sum(len(records) for records in in_cluster(shop.broker.bootstrap, restored).values())


def names(shop: Shop) -> set[str]:
    """Of all topics and groups that there are."""
    admin = AdminClient(shop.broker.client())
    topics = {name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")}  # the broker's own
    return topics | group_names(admin)


@pytest.mark.parametrize(
    ("act", "event", "nth"),
    [("interrupt", "transaction", 2), pytest.param("terminate", "phase groups", 1, marks=pytest.mark.soak)],
)
def test_an_interrupted_drill_leaves_nothing(
    act: Act, event: str, nth: int, archive: Path, tmp_path: Path, shop: Shop
) -> None:
    before = names(shop)
    ended = run(tmp_path / "run", arguments(shop, archive), Wish(act, "after", event, nth))
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    error = ended.document["error"]
    assert error["message"] == (
        "interrupted: the drill says nothing about the archive; nothing of it is left on the target"
    )
    assert printed_command(ended)[1:] == arguments(shop, archive)
    assert names(shop) <= before
    store = FileStore(archive)
    (key,) = [e.key for e in store.list(layout.DRILLS) if e.key.endswith(layout.REPORT)]
    report = load(DrillReport, store.get(key), key)
    assert (report.result, report.left, report.prefix) == ("interrupted", (), PREFIX)
