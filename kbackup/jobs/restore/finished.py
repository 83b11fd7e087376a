"""Checks of a finished restore that is run again with its id: the same options, and its records are still there."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from kbackup.archive.restores.finished import finished_restore
from kbackup.archive.restores.offset_map import by_partition
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.jobs import Restore
from kbackup.config.keys import RENAMED
from kbackup.errors import MismatchError
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store

_ANOTHER = "give another --restore-id to restore it again"
_FREE = ("restore_id", "state", "from_delta", "transactions", "transaction_bytes")
"""Keys of `[restore]` that do not decide what is restored."""
_ORDERED = ("map_regex",)


def given_options(options: Restore) -> dict[str, Any]:
    """The keys of `[restore]` that decide what is restored, as they were given; lists in order where it is free."""
    keys: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(options))
    return {
        name: sorted(value) if isinstance(value, list) and name not in _ORDERED else value
        for name, value in keys.items()
        if name not in _FREE
    }


def check_same_options(plan: RestorePlan, options: Restore) -> None:
    """Raise `MismatchError` where `plan` was made for other options; older versions did not write them down."""
    if plan.options is None:
        return
    given = given_options(options)
    before = {_present_name(name): value for name, value in plan.options.items()}
    different = [name for name in given if before.get(name) != given[name]]
    if different:
        changes = "; ".join(f"{n} was {_text(before.get(n))}, now {_text(given[n])}" for n in different)
        raise MismatchError(
            f"restore {plan.restore_id} was done with other options: {changes}",
            "give the same options as then, or another --restore-id",
        )


def _present_name(name: str) -> str:
    """Return the name of a key of `[restore]` that an older version may have written under another name."""
    return RENAMED.get(f"restore.{name}", name).removeprefix("restore.")


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode() if value else "unset"


def check_still_there(cluster: Cluster, state: Store, plan: RestorePlan) -> None:
    """Raise `MismatchError` where a topic of a finished restore, or one of its records, is no longer in the target."""
    there = cluster.topics(t.target for t in plan.topics)
    for topic in plan.topics:
        existing = there.get(topic.target)
        if existing is None or len(existing.partitions) < topic.partitions:
            problem = "is not in the target" if existing is None else "has fewer partitions than it had"
            raise MismatchError(
                f"topic {topic.target} of finished restore {plan.restore_id} {problem}", _ANOTHER
            )
    runs = dict(by_partition(finished_restore(state, plan.restore_id)[1]))
    starts, ends = cluster.log_starts(runs), cluster.log_ends(runs, "read_uncommitted")
    for tp, (_, target, count) in runs.items():
        first, end = int(target.min()), int(np.max(target + count))
        if starts[tp] > first or ends[tp] < end:
            raise MismatchError(
                f"finished restore {plan.restore_id} put records at offsets {first} to {end} (exclusive) of {tp}, "
                f"which has {starts[tp]} to {ends[tp]} now",
                _ANOTHER,
            )
