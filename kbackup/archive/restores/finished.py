"""Read what a finished restore left in an archive."""

from __future__ import annotations

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.restores.offset_map import decode
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import NotFoundError, RefusedError, UsageError
from kbackup.store.base import Store


def finished_restore(state: Store, restore_id: str) -> tuple[RestorePlan, pa.Table]:
    """A restore's plan and its whole offset map."""
    plan_key, map_key = (layout.restore_key(restore_id, name) for name in (layout.PLAN, layout.OFFSETS))
    try:
        plan = load(RestorePlan, state.get(plan_key), plan_key)
    except NotFoundError as error:
        raise UsageError(
            f"there is no restore {restore_id} at {state.url}",
            "check the id, and --state if the restore was given one",
        ) from error
    try:
        return plan, decode(state.get(map_key), map_key)
    except NotFoundError as error:
        raise RefusedError(
            f"restore {restore_id} is not finished: it has no offset map yet",
            f"resume it with kbackup restore --restore-id {restore_id}",
        ) from error
