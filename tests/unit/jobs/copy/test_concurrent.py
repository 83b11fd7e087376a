"""Copies beside backups, drills and other copies, with lost answers and with keys that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.errors import (
    LockedError,
    OutcomeUnknownError,
    WrongKeyError,
)
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.archives import make_archive
from tests.support.copies import Open, StoreNamed, add_point, check_same, check_whole, copied
from tests.support.faulty_store import FaultyStore, Operation, lost_answer

pytestmark = pytest.mark.exhaustive(keep=2)


class Meanwhile(FaultyStore):
    """Something happens at its first write below topics/."""

    def __init__(self, inner: Store, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self.happens: Callable[[], None] | None = happens

    def _before(self, operation: Operation, key: str) -> None:
        if key.startswith(layout.TOPICS) and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        super()._before(operation, key)


def test_backups_go_on_while_it_copies(store_named: StoreNamed, opened: Open) -> None:
    source, target = opened(store_named("a")), store_named("b")
    make_archive(source)
    assert copied(source, opened(Meanwhile(target, lambda: add_point(source, 3, 0)))).newest == 2
    check_whole(opened(target))
    assert copied(source, opened(target)).restore_points == (3,)
    check_same(source, opened(target))


def test_drills_go_on_while_it_copies(store_named: StoreNamed, opened: Open) -> None:
    """Under data keys of their own."""
    source, target = store_named("a"), store_named("b")
    make_archive(opened(source))
    page = "drills/d/report.html"

    def drill() -> None:
        opened(source).put(page, b"passed")

    assert copied(opened(source), opened(Meanwhile(target, drill))).beside == 1
    assert opened(target).get(page) == b"passed"


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("operation", ["put_new", "commit", "put", "replace"])
def test_a_lost_answer_ends_it_and_the_next_goes_on(
    store_named: StoreNamed, opened: Open, operation: Operation
) -> None:
    source, target = opened(store_named("a")), store_named("b")
    make_archive(source)
    pattern = "topics/*" if operation == "put" else "[!l]*/*"
    with pytest.raises(OutcomeUnknownError):
        copied(source, opened(FaultyStore(target, lost_answer(operation, pattern))))
    copied(source, opened(target))
    target.delete([e.key for e in target.list(layout.SCRATCH)])
    check_same(source, opened(target))


def test_one_copy_at_a_time(store_named: StoreNamed) -> None:
    source, target = store_named("a"), store_named("b")
    make_archive(source)
    copied(source, target)
    with HeldLease(target, "kbackup backup", 60), pytest.raises(LockedError):
        copied(source, target)
    with HeldLease(source, "kbackup backup", 60):
        copied(source, target)


def test_the_key_must_fit_both(store_named: StoreNamed, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(generate_key())

    def sealed(store: Store) -> Store:
        return CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"), layout.key_class)

    make_archive(sealed(store_named("a")))
    with pytest.raises(WrongKeyError, match="no key is given"):
        copied(store_named("a"), store_named("b"))
    assert list(store_named("b").list()) == []
