"""`kbackup rewrite`: what it asks for, what it shows, and that an expiration does the same at its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbackup.store.file import FileStore
from tests.support.archives import History, expired
from tests.support.printed import Kbackup


def another_key(offset: int) -> bytes:
    return b"key %d" % (offset % 3)


@pytest.fixture
def compactable(tmp_path: Path) -> str:
    """The path of an archive with a compacted topic: one restore point of six is left."""
    store = FileStore(tmp_path / "compactable")
    history = History(store, configs={"a": {"cleanup.policy": "compact"}}, key=another_key)
    for number in range(1, 7):
        history.run(number, {"a": 4})
    expired(store, last=1)
    return str(tmp_path / "compactable")


def test_superseded_records_go_and_are_counted(compactable: str, kbackup: Kbackup) -> None:
    planned = kbackup("rewrite", compactable, "--compact")
    assert "24 segments would be compacted to 2: of 48 records that were looked at, 40 are superseded" in planned.out
    assert "nothing was changed; to rewrite: kbackup rewrite" in planned.err
    assert "24 segments compacted to 2" in kbackup("rewrite", compactable, "--compact", "--confirm").out
    assert re.search(r"compacted away: +40 records", kbackup("info", "-a", compactable).out)
    assert "without 40 superseded records" in kbackup("log", "-a", compactable).out
    assert "no segments to rewrite" in kbackup("rewrite", compactable, "--compact", "--confirm").out


def test_a_search_that_finds_little_says_so(compactable: str, kbackup: Kbackup) -> None:
    kbackup("rewrite", compactable, "--compact", "--confirm")
    history = History(FileStore(Path(compactable)), configs={"a": {"cleanup.policy": "compact"}}, key=b"%d".__mod__)
    history.topics = {topic.name: topic for topic in history.archive.restore_point("latest").topics}
    history.run(7, {"a": 4})
    expired(FileStore(Path(compactable)), last=1)
    printed = kbackup("rewrite", compactable, "--compact", "--confirm")
    assert "of 16 records in compacted topics, too few are superseded\nno segments to rewrite" in printed.out


@pytest.fixture
def many(tmp_path: Path) -> str:
    """The path of an archive with six restore points of a topic with two partitions, all of them kept."""
    store = FileStore(tmp_path / "many")
    history = History(store)
    for number in range(1, 7):
        history.run(number, {"a": 2})
    return str(tmp_path / "many")


def test_something_to_do_has_to_be_given(many: str, kbackup: Kbackup) -> None:
    printed = kbackup("rewrite", many, code=2)
    assert "nothing is given to do" in printed.err


def test_a_dry_run_names_the_command_that_merges(many: str, kbackup: Kbackup) -> None:
    expired(FileStore(Path(many)), last=1)
    printed = kbackup("rewrite", many, "--merge-below", "1MiB")
    assert "12 segments would be merged to 2\nthe archive has 2 segments instead of 12" in printed.out
    assert "nothing was changed; to rewrite: kbackup rewrite" in printed.err
    assert "--confirm" in printed.err


def test_segments_are_merged_and_the_log_says_so(many: str, kbackup: Kbackup) -> None:
    expired(FileStore(Path(many)), last=1)
    printed = kbackup("rewrite", many, "--merge-below", "1MiB", "--confirm")
    assert "12 segments merged to 2\nthe archive has 2 segments instead of 12" in printed.out
    assert "the replaced objects are deleted by the first 'kbackup expire --confirm' after" in printed.err
    assert "12 segments merged to 2" in kbackup("log", "-a", many).out
    assert "no segments to rewrite" in kbackup("rewrite", many, "--merge-below", "1MiB", "--confirm").out


def test_what_waits_for_the_end_of_an_undo_is_named(many: str, kbackup: Kbackup) -> None:
    kbackup("expire", many, "--keep-last", "1", "--confirm")
    printed = kbackup("rewrite", many, "--merge-below", "1MiB", "--confirm")
    assert "no segments to rewrite" in printed.out
    assert "10 segments more can go when the restore points that expired can no longer be brought back" in printed.err


def test_an_expiration_merges_at_its_end_if_it_is_configured(many: str, kbackup: Kbackup) -> None:
    options = ("--keep-last", "1", "--grace", "0s", "--set", "rewrite.merge_below=1MiB")
    printed = kbackup("expire", many, *options, "--confirm", "--json")
    assert printed.json["rewrite"]["merged"] == 2
    assert printed.json["not_rewritten"] == ""
