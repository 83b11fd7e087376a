"""The oracle of the walk notices what it is there for."""

from __future__ import annotations

import pytest

from scripts.soak.walk.oracle import Book, Life, Log, Offset, Record, Restored, compare


def record(number: int) -> Record:
    return Record(number * 1000, b"k", b"%d" % number, ())


def log(offsets: range, start: int = 0, position: int = 0) -> Log:
    records = {offset: record(offset) for offset in offsets if offset >= start}
    return Log({0: records}, {0: start}, {0: offsets.stop}, {0: position})


def restored(offsets: range, position: int = 0) -> Restored:
    """As a restore into an empty topic writes these: from offset 0 on."""
    return Restored({0: {at: record(o) for at, o in enumerate(offsets)}}, {0: position})


def book_of(life: Life, *logs: Log) -> Book:
    book = Book()
    for number, each in enumerate(logs, 1):
        book.back_up(number, {life: each})
    return book


RIGHT: dict[str, Restored] = {"all": restored(range(10), 4)}
WRONG: dict[str, Restored] = {
    "a record is missing": restored(range(9), 4),
    "a record is too many": restored(range(11), 4),
    "another order": Restored({0: {0: record(1), 1: record(0)}}, {0: 0}),
    "another value": Restored({0: {o: record(o)._replace(value=b"x") for o in range(10)}}, {0: 4}),
    "another timestamp": Restored({0: {o: record(o)._replace(timestamp=1) for o in range(10)}}, {0: 4}),
    "a partition is missing": Restored({}, {}),
    "the group is further on": restored(range(10), 5),
    "the group is not there": Restored(restored(range(10)).records, {}),
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_a_restore_is_compared(name: str) -> None:
    life = Life(1, "t")
    book = book_of(life, log(range(10), position=4), log(range(20), position=9))
    wrong, lacks = compare(book, book.points[1]["t"], (RIGHT | WRONG)[name])
    assert (bool(wrong), lacks) == (name in WRONG, False)


def test_archived_records_outlive_their_deletion_in_kafka() -> None:
    life = Life(1, "t")
    book = book_of(life, log(range(10)), log(range(20), start=15))
    assert book.lacks({life: log(range(30), start=25)})
    assert not book.lacks({life: log(range(30), start=20)})
    got = Restored({0: {n: record(o) for n, o in enumerate([*range(10), *range(15, 20)])}}, {0: 0})
    assert compare(book, book.views["t"], got) == ([], False)


def test_a_killed_backup_leaves_the_answer_open_until_the_next_one() -> None:
    life = Life(1, "t")
    book = book_of(life, log(range(10)))
    book.interrupt({life: log(range(20))})
    book.back_up(2, {life: log(range(30), start=15)})
    assert {offset.offset for offset in book.unsure} == set(range(10, 15))
    for first in (10, 15):
        got = Restored({0: {n: record(o) for n, o in enumerate([*range(10), *range(first, 30)])}}, {0: 0})
        assert compare(book, book.views["t"], got) == ([], False)


def test_a_repair_may_list_the_restore_point_of_a_killed_backup() -> None:
    life = Life(1, "t")
    book = book_of(life, log(range(10)))
    assert not book.list_interrupted(2)
    book.interrupt({life: log(range(20))})
    assert not book.list_interrupted(3)
    assert book.list_interrupted(2)
    assert compare(book, book.views["t"], restored(range(20))) == ([], False)
    assert book.is_doubtful


def test_lost_segments_ask_for_exit_code_3() -> None:
    life = Life(1, "t")
    book = book_of(life, log(range(10)))
    book.lose("t", 0, 4, 8)
    got = Restored({0: {n: record(o) for n, o in enumerate([0, 1, 2, 3, 8, 9])}}, {0: 0})
    assert compare(book, book.views["t"], got) == ([], True)


def test_retention_keeps_what_is_pinned_and_undo_brings_all_back() -> None:
    life = Life(1, "t")
    book = book_of(life, log(range(10)), log(range(20)), log(range(30)))
    book.pins.add(1)
    book.expire(1, 15_000)
    assert set(book.points) == {1, 3}
    assert not book.unsure, "a pinned restore point has the first records"
    book.pins.clear()
    book.expire(None, 15_000)
    assert book.unsure == {Offset(1, 0, offset) for offset in range(15)}
    book.undo()
    book.undo()
    assert (set(book.points), book.unsure, book.expired) == ({1, 2, 3}, set(), {})


def test_a_copy_follows_and_keeps_what_it_is_told_to() -> None:
    life = Life(1, "t")
    source = book_of(life, log(range(10)), log(range(20)))
    copies = {False: Book(), True: Book()}
    for keep, copy in copies.items():
        copy.follow(source, keep=keep)
        assert set(copy.points) == {1, 2}
    source.expire(1, None)
    source.back_up(3, {life: log(range(30))})
    for keep, copy in copies.items():
        copy.follow(source, keep=keep)
        assert set(copy.points) == ({1, 2, 3} if keep else {2, 3})
        assert copy.points[3]["t"].life is life
