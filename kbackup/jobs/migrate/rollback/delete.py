"""The guarded deletion of /controller and /migration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kbackup.errors import MismatchError
from kbackup.jobs.migrate.rollback.guards import Guard, guards_of
from kbackup.jobs.migrate.rollback.situation import CONTROLLER, MIGRATION, Situation, ZnodeContent

DELETABLE = frozenset({CONTROLLER, MIGRATION})


class Znodes(Protocol):
    """ZooKeeper, as far as the deletion needs it."""

    def delete(self, path: str, version: int) -> bool:
        """Delete a znode below the chroot if it still has this version; return False where it was written since, or
        is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Deletion:
    """The guards, and the znodes that were deleted, with their content."""

    guards: tuple[Guard, ...]
    deleted: tuple[ZnodeContent, ...]


def delete_znodes(situation: Situation, znodes: Znodes) -> Deletion:
    """Delete the znodes of the migration, if every guard holds; else raise `MismatchError` and delete nothing.

    A znode that was written since it was read means a controller that is alive: the deletion ends there."""
    guards = guards_of(situation)
    refusing = [guard for guard in guards if not guard.holds]
    if refusing:
        reasons = "; ".join(f"{guard.name}: {guard.detail}" for guard in refusing)
        raise MismatchError(f"nothing was deleted: {reasons}", refusing[0].hint)
    deleted: list[ZnodeContent] = []
    for znode in situation.due:
        if znode.path not in DELETABLE:
            raise AssertionError(znode.path)
        if not znodes.delete(znode.path, znode.version):
            gone = " and ".join(z.path for z in deleted) or "nothing"
            raise MismatchError(
                f"{znode.path} was written since it was read; {gone} was deleted",
                "stop the controller that is alive, archive, and run the rollback again",
            )
        deleted.append(znode)
    return Deletion(guards, tuple(deleted))
