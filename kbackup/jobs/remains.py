"""What a store still has of the bytes of erased records: until when locks keep them, and whether versions stay."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.errors import KbackupError, NotFoundError
from kbackup.store.base import KEPT_AS_VERSION, UNKNOWN_RETENTION, Retention, Store
from kbackup.util.system import in_threads
from kbackup.util.times import duration_text, time_text


@dataclass(frozen=True, slots=True)
class Remains:
    """The bytes of erased records in a store, which no reader looks into any more.

    `objects` are still there; of deleted ones there are `versions`, None if the store does not tell. Of both, `locked`
    can't be deleted yet, the last of them before `locked_until`; `held` are kept by holds without an end; of `untold`
    the store does not say whether a lock or a hold keeps them. `kept_as_versions`: a deleted object stays as a version;
    None if the store does not tell. If not, it stays for `kept_seconds`.
    """

    objects: int
    versions: int | None
    locked: int
    locked_until: str | None
    held: int
    untold: int
    kept_as_versions: bool | None
    kept_seconds: float


def ask_remains(store: Store, keys: Iterable[str]) -> Remains:
    """Ask a store for what it keeps of objects, whether or not they are deleted. What it refuses to tell is unknown."""
    ordered = sorted(keys)

    def ask(key: str) -> Retention | None:
        try:
            return store.retention(key)
        except NotFoundError:
            return None

    answers = in_threads(ask, ordered)
    there = [answer for answer in answers if answer is not None]
    deleted = [key for key, answer in zip(ordered, answers, strict=True) if answer is None]
    after_deletion = _after_deletion(store, there)
    versions: list[Retention] | None = []
    # Where nothing outlives a deletion there is nothing to ask for.
    if deleted and after_deletion != 0:
        versions = _versions(store, deleted)
    return _sum(there, versions, after_deletion)


def _after_deletion(store: Store, there: Sequence[Retention]) -> float | None:
    """Return for how long deleted objects stay: the longest time, None if that is unknown for any."""
    times: list[float] = []
    for retention in there or [_retention_of_archive(store)]:
        if retention.after_deletion is None:
            return None
        times.append(retention.after_deletion)
    return max(times)


def _retention_of_archive(store: Store) -> Retention:
    """Return what keeps a file that each archive has: it stands for files that are deleted."""
    try:
        return store.retention(layout.ARCHIVE)
    except KbackupError:
        return UNKNOWN_RETENTION


def _versions(store: Store, keys: Sequence[str]) -> list[Retention] | None:
    """Return the versions of deleted objects that are left; None if the store does not tell of one of them."""
    # One first: who may not list versions is refused for all of them.
    first = store.deleted_versions(keys[0])
    if first is None:
        return None
    versions = list(first)
    for found in in_threads(store.deleted_versions, keys[1:]):
        if found is None:
            return None
        versions += found
    return versions


def _sum(there: Sequence[Retention], versions: Sequence[Retention] | None, after_deletion: float | None) -> Remains:
    now = time.time()
    every = [*there, *(versions or ())]
    ends = [each.until for each in every if each.until is not None and each.until > now]
    untold = sum(each.until is None or each.held is None for each in every)
    kept_as_versions = None if after_deletion is None else after_deletion == KEPT_AS_VERSION
    kept_seconds = 0.0
    if after_deletion is not None and not kept_as_versions:
        kept_seconds = after_deletion
    return Remains(
        objects=len(there),
        versions=None if versions is None else len(versions),
        locked=len(ends),
        locked_until=time_text(round(max(ends) * 1000)) if ends else None,
        held=sum(each.held is True for each in every),
        untold=untold,
        kept_as_versions=kept_as_versions,
        kept_seconds=kept_seconds,
    )


def lock_sentences(remains: Remains) -> list[str]:
    """Return what keeps the bytes that are there, as clauses of a sentence about them; none if nothing does."""
    clauses: list[str] = []
    if remains.locked:
        clauses.append(f"locks keep {remains.locked:,} of them, the last one until {remains.locked_until}")
    if remains.held:
        clauses.append(f"holds without an end keep {remains.held:,} of them")
    if remains.untold:
        clauses.append(
            f"whether a lock keeps {remains.untold:,} of them is unknown: the store does not tell this login"
        )
    return clauses


def deletion_sentences(remains: Remains) -> list[str]:
    """Return what stays of an object that is deleted, as clauses; none if nothing does."""
    if remains.kept_as_versions is None:
        return ["whether the bytes stay after that, as versions, is unknown: the store does not tell this login"]
    if remains.kept_as_versions:
        return ["the bytes stay after that as versions, until a rule of the bucket or somebody deletes these"]
    if remains.kept_seconds:
        return [f"the store keeps what is deleted for {duration_text(remains.kept_seconds)} more"]
    return []
