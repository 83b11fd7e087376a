"""Topics of the archive whose id is not known, where a backup would go on with a topic of the same name. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup.archive.models import Manifest
from kbackup.errors import RefusedError
from kbackup.jobs.plan import LiveTopic

_SHOWN = 5


def check_identity(head: Manifest | None, selected: Sequence[LiveTopic], adopt: bool) -> None:
    """`RefusedError` where the archive has a topic without an id (it was adopted, or repaired with nothing left that
    told it) and the cluster has one with: records of another topic of that name would go on after it."""
    if head is None or adopt:
        return
    unknown = {t.name for t in head.topics if not t.id}
    found = [t.name for t in selected if t.id and t.name in unknown]
    if not found:
        return
    some = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    raise RefusedError(
        f"nothing in the archive tells whether topic {some} of the source is the one that it has records of",
        "compare them with 'kbackup verify --against source'; where they are the same, run one backup with "
        "--adopt-topics",
    )
