"""The verdict on the archive, at the top of every page: as `kbackup status` gives it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kbackup.archive.reader import Archive
from kbackup.cli.common.human import plural
from kbackup.config import Backup
from kbackup.errors import KbackupError
from kbackup.store.base import Store

if TYPE_CHECKING:
    from kbackup.jobs.status.report import ArchiveStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StatusRules:
    """The rules of a status: `max_age` of the newest restore point in seconds, and whether losses are no findings."""

    max_age: float = Backup().max_age
    allow_loss: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A level with its line. `status` is None if it can't be read; `line` and `hint` say why."""

    level: Literal["ok", "warning", "critical", "unknown"]
    line: str
    status: ArchiveStatus | None = None
    hint: str = ""


def verdict_on(archive: Archive, rules: StatusRules, reports: Store) -> Verdict:
    """Return the verdict now; an error is one, too, as the other pages must stay readable."""
    from kbackup.cli.common.status_text import summary
    from kbackup.jobs.status.job import archive_status

    try:
        status = archive_status(archive, rules.max_age, reports=reports, allow_loss=rules.allow_loss)
    except KbackupError as error:
        log.warning("status: %s", error)
        return Verdict("unknown", error.message, hint=error.hint)
    if not status.findings:
        return Verdict("ok", summary(status), status)
    others = len(status.findings) - 1
    more = f"; {plural(others, 'other finding')}" if others else ""
    return Verdict(status.level, f"{status.findings[0].message}{more}", status)
