"""What follows from restore points that are whole, and is missing or damaged: rebuilt byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.models import Intent, IntentTopic, Manifest, Refreshed, dump, now
from kbackup.archive.repair.left import Left
from kbackup.archive.segment_io import crc_of
from kbackup.archive.segments import Segment
from kbackup.archive.settle import step_of
from kbackup.archive.verify.checkpoints import check_checkpoints
from kbackup.archive.verify.derived import expected
from kbackup.archive.verify.findings import Findings
from kbackup.archive.verify.objects import index_size
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_THREADS = 16


def damaged_files(store: Store, left: Left) -> dict[str, bytes]:
    """Key -> what it should hold, of every derived file that is missing or different: partition indexes, group files,
    intents of restore points, and the mark that all of that is written, last."""
    due = expected(left.points)

    def differs(key: str) -> bool:
        if left.sizes.get(key) != len(due[key]):
            return True
        try:
            return store.get(key) != due[key]
        except (CorruptError, NotFoundError):
            return True

    with ThreadPoolExecutor(_THREADS) as pool:
        wrong = pool.map(differs, due)
        found = {key: due[key] for key, bad in zip(list(due), wrong, strict=True) if bad}
    bad = {finding.file for finding in left.findings}
    for manifest in left.points.committed:
        intent = layout.backup_key(manifest.seq, layout.INTENT)
        if intent in bad or intent not in left.sizes:
            found[intent] = dump(intent_of(manifest))
    if (said := left.points.expired) is not None:
        steps = (step_of(said, "refreshed"), step_of(said, "swept"))
        keys = {layout.expiration_key(said.number, f"{step.step}.json"): step for step in steps}
        found |= {key: dump(step) for key, step in keys.items() if key in bad}
    for manifest in left.points.committed:
        mark = layout.backup_key(manifest.seq, layout.REFRESHED)
        newest = manifest is left.points.committed[-1]
        if mark in bad or (newest and mark not in left.sizes):
            found[mark] = dump(Refreshed(seq=manifest.seq, at=now()))
    return found


def intent_of(manifest: Manifest) -> Intent:
    """The intent that such a restore point must have had, but for the host."""
    return Intent(
        archive_id=manifest.archive_id,
        seq=manifest.seq,
        parent=manifest.parent,
        run_id=manifest.run_id,
        host="",
        started_at=manifest.started_at,
        isolation_level=manifest.isolation_level,
        topics=tuple(
            IntentTopic(name=t.name, id=t.id, incarnation=t.incarnation)
            for t in manifest.topics
            if t.captured == manifest.seq
        ),
    )


def damaged_indexes(store: Store, left: Left) -> Iterator[Segment]:
    """Segments of restore points whose index is missing, or is not what their table says; their records are there."""

    def differs(segment: Segment) -> bool:
        key = layout.index_key_of(segment.key)
        if left.sizes.get(key) != index_size(segment):
            return True
        try:
            return crc_of(store.get(key)) != segment.index_crc
        except (CorruptError, NotFoundError):
            return True

    segments = [s for table in left.points.added.values() for s in table]
    there = [s for s in segments if left.sizes.get(s.key) == s.stored]
    with ThreadPoolExecutor(_THREADS) as pool:
        for segment, bad in zip(there, pool.map(differs, there), strict=True):
            if bad:
                yield segment


def damaged_checkpoints(store: Store, left: Left) -> list[str]:
    """Every file of checkpoints, where any is not what follows from the restore points."""
    findings = Findings()
    check_checkpoints(store, left.points, left.sizes, findings)
    if not findings.found:
        return []
    return [key for key in left.sizes if key.startswith(layout.CHECKPOINTS)]
