"""The content of an archive at a moment."""

from __future__ import annotations

import msgspec

from kbackup.archive.query.content import Content
from kbackup.config.models import Restore
from kbackup.jobs.restore.plan import select_content
from kbackup.store.base import Store

FIRST, SECOND = (f"2026-01-0{n}T00:00:00Z" for n in (1, 2))
BETWEEN = "2026-01-01T12:00:00Z"


def chosen(store: Store, **options: object) -> Content:
    return select_content(msgspec.convert(options, Restore), store)


def sizes_of(content: Content) -> dict[str, list[tuple[int, int]]]:
    """At most so many records, and segments to read, by topic and partition."""
    return {t.name: [(p.records, len(p.segments)) for p in t.partitions] for t in content.topics}
