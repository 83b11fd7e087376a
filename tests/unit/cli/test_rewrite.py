"""`kbackup rewrite`: what it asks for, what it shows, and that an expiration does the same at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.store.file import FileStore
from tests.support.archives import History, expired
from tests.support.printed import Kbackup


@pytest.fixture
def many(tmp_path: Path) -> str:
    """The path of an archive with six restore points of a topic with two partitions, all of them kept."""
    store = FileStore(tmp_path / "many")
    history = History(store)
    for number in range(1, 7):
        history.run(number, {"a": 2})
    return str(tmp_path / "many")


def test_a_size_has_to_be_given(many: str, kbackup: Kbackup) -> None:
    printed = kbackup("rewrite", many, code=2)
    assert "no size is given below which segments are merged" in printed.err


def test_a_dry_run_names_the_command_that_merges(many: str, kbackup: Kbackup) -> None:
    expired(FileStore(Path(many)), last=1)
    printed = kbackup("rewrite", many, "--merge-below", "1MiB")
    assert "12 segments would be merged to 2: the archive has 2 segments instead of 12" in printed.out
    assert "nothing was changed; to merge: kbackup rewrite" in printed.err
    assert "--confirm" in printed.err


def test_segments_are_merged_and_the_log_says_so(many: str, kbackup: Kbackup) -> None:
    expired(FileStore(Path(many)), last=1)
    printed = kbackup("rewrite", many, "--merge-below", "1MiB", "--confirm")
    assert "12 segments merged to 2: the archive has 2 segments instead of 12" in printed.out
    assert "the replaced objects are deleted by the first 'kbackup expire --confirm' after" in printed.err
    assert "12 segments merged to 2" in kbackup("log", "-a", many).out
    assert "no segments to merge" in kbackup("rewrite", many, "--merge-below", "1MiB", "--confirm").out


def test_what_waits_for_the_end_of_an_undo_is_named(many: str, kbackup: Kbackup) -> None:
    kbackup("expire", many, "--keep-last", "1", "--confirm")
    printed = kbackup("rewrite", many, "--merge-below", "1MiB", "--confirm")
    assert "no segments to merge" in printed.out
    assert "10 segments more can go when the restore points that expired can no longer be brought back" in printed.err


def test_an_expiration_merges_at_its_end_if_it_is_configured(many: str, kbackup: Kbackup) -> None:
    options = ("--keep-last", "1", "--grace", "0s", "--set", "rewrite.merge_below=1MiB")
    printed = kbackup("expire", many, *options, "--confirm", "--json")
    assert printed.json["rewrite"]["merged"] == 2
    assert printed.json["not_rewritten"] == ""
