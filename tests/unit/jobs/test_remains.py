"""What is told of the bytes of erased records: dates where a store has them, and what it does not tell."""

from __future__ import annotations

import builtins
import time

import pytest

from kbackup.errors import NotFoundError, UnreachableError
from kbackup.jobs.remains import Remains, ask_remains, deletion_sentences, lock_sentences
from kbackup.store.base import KEPT_AS_VERSION, NO_RETENTION, Retention
from tests.support.memory_store import MemoryStore

DATE = "2100-01-01T00:00:00.000Z"
LOCKED = Retention(4102444800.0, False, KEPT_AS_VERSION)
HELD = Retention(0.0, True, KEPT_AS_VERSION)
UNTOLD = Retention(None, None, KEPT_AS_VERSION)
OVER = Retention(time.time() - 60, False, KEPT_AS_VERSION)


class Bucket(MemoryStore):
    """Tells what it is told to tell of its objects. `versions` are those of deleted ones, None untold."""

    def __init__(self, *there: Retention, versions: builtins.list[Retention] | None = None, gone: int = 0) -> None:
        super().__init__()
        self.there = dict(zip("abcdef", there, strict=False))
        self.versions = versions
        self.keys = [*self.there, *(f"gone {number}" for number in range(gone))]
        self.asked: builtins.list[str] = []

    def retention(self, key: str) -> Retention:
        if key == "archive.json":
            return next(iter(self.there.values()), LOCKED)
        if key not in self.there:
            raise NotFoundError(key)
        return self.there[key]

    def deleted_versions(self, key: str) -> builtins.list[Retention] | None:
        self.asked.append(key)
        return self.versions

    @property
    def remains(self) -> Remains:
        return ask_remains(self, self.keys)


def test_locks_are_told_with_the_date_of_the_last_one() -> None:
    remains = Bucket(LOCKED, OVER, HELD, UNTOLD, LOCKED._replace(until=4000000000.0)).remains
    assert (remains.objects, remains.locked, remains.locked_until) == (5, 2, DATE)
    assert lock_sentences(remains) == [
        f"locks keep 2 of them, the last one until {DATE}",
        "holds without an end keep 1 of them",
        "whether a lock keeps 1 of them is unknown: the store does not tell this login",
    ]
    assert "as versions, until a rule" in deletion_sentences(remains)[0]


def test_nothing_is_told_of_a_store_that_keeps_nothing() -> None:
    bucket = Bucket(NO_RETENTION, NO_RETENTION, gone=2)
    remains = bucket.remains
    assert remains == Remains(2, 0, 0, None, 0, 0, False, 0.0)
    assert lock_sentences(remains) == deletion_sentences(remains) == []
    assert bucket.asked == [], "where nothing outlives a deletion nobody asks for versions"


def test_versions_of_deleted_objects_are_counted_with_their_locks() -> None:
    remains = Bucket(gone=3, versions=[LOCKED]).remains
    assert (remains.objects, remains.versions, remains.locked, remains.locked_until) == (0, 3, 3, DATE)


def test_a_login_that_may_not_list_versions_is_asked_for_one_key_and_told_nothing() -> None:
    bucket = Bucket(gone=3)
    remains = bucket.remains
    assert remains.versions is None
    assert bucket.asked == ["gone 0"]


@pytest.mark.parametrize(
    ("after_deletion", "words"),
    [
        (None, "whether the bytes stay after that, as versions, is unknown"),
        (7 * 86400.0, "the store keeps what is deleted for 7d more"),
    ],
)
def test_what_stays_after_a_deletion_is_told(after_deletion: float | None, words: str) -> None:
    remains = Bucket(NO_RETENTION, NO_RETENTION._replace(after_deletion=after_deletion)).remains
    (sentence,) = deletion_sentences(remains)
    assert words in sentence


def test_an_archive_whose_store_can_not_be_asked_has_unknown_versions() -> None:
    class Down(Bucket):
        def retention(self, key: str) -> Retention:
            if key == "archive.json":
                raise UnreachableError("the store is down")
            return super().retention(key)

    remains = Down(gone=1).remains
    assert (remains.versions, remains.kept_as_versions) == (None, None)
