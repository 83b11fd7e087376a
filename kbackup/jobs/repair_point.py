"""The restore points that a repair or an adoption takes, committed like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.commit import publish, put_part, refresh_derived, totals
from kbackup.archive.expired import segments_key
from kbackup.archive.models import (
    ArchiveInfo,
    Expired,
    Gone,
    Groups,
    Intent,
    Manifest,
    Point,
    Repaired,
    dump,
    file_sum,
    load,
    now,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.repair import beside, derived
from kbackup.archive.repair.beside import Topic
from kbackup.archive.repair.choose import Chosen
from kbackup.archive.repair.left import Left
from kbackup.archive.repair.point import Known, known_topics, layers, losses_of, topic_state
from kbackup.archive.segments import Segment, encode_folded, encode_segments, with_seq
from kbackup.archive.settle import settle
from kbackup.jobs.repair_write import delete
from kbackup.store.base import Store

Why = Literal["lost", "adopted"]


@dataclass
class _Making:
    """Restore points in the making, on what is `left` and was `chosen`. `tabled` are keys of segments that tables up to
    here have; `made` are the manifests, oldest first."""

    store: Store
    left: Left
    chosen: Chosen
    known: dict[Topic, Known]
    owner: str
    why: Why
    tabled: set[str]
    made: list[Manifest] = field(default_factory=list)

    @property
    def lost(self) -> tuple[int, ...]:
        kept = self.chosen.kept
        return () if self.made else tuple(self.left.lost_after(kept[-1].seq if kept else 0))

    @property
    def parent(self) -> int | None:
        if self.made:
            return self.made[-1].seq
        if self.left.expirations:
            return self.first - 1
        return self.chosen.kept[-1].seq if self.chosen.kept else None

    @property
    def first(self) -> int:
        """The number of the first one. Where something was expired it names a number that nobody had as its parent:
        readers meet a broken chain until the expiration that follows says that all before is gone, and never see what
        both have twice. A repair that is cut off in between begins anew."""
        return self.left.last + (2 if self.left.expirations else 1)


def commit_points(
    store: Store,
    left: Left,
    chosen: Chosen,
    confirm: bool,
    owner: str,
    check: Callable[[], None],
    why: Why = "lost",
) -> list[Manifest]:
    """The new restore points, oldest first: one, and one before it for each older incarnation of a topic. Where it is
    not confirmed they are made and not written."""
    making = _Making(store, left, chosen, known_topics(left, chosen), owner, why, set(chosen.tabled))
    order = layers(chosen, making.known)
    for topics in order:
        manifest, parts = _make(making, topics, newest=topics is order[-1])
        making.made.append(_commit(making, manifest, parts, check) if confirm else manifest)
    if confirm:
        _follow(making, check)
    return making.made


def _make(making: _Making, topics: Sequence[Topic], newest: bool) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest, without the sums of the files beside it, and those."""
    left, chosen, known = making.left, making.chosen, making.known
    seq = making.first + len(making.made)
    captured = beside.captures(left, {t: known[t].id for t in topics}) if newest else {}
    groups: Groups = beside.groups_of(making.store, left, topics, captured)
    states = tuple(topic_state(seq, topic, known[topic], left, chosen, groups) for topic in topics)
    added = _added(making, topics)
    not_known = [*_untold_losses(making), *chosen.not_known, *beside.told(left, topics, captured)]
    if nameless := [s.name for s in states if not s.id]:
        not_known.append(f"Kafka's ids of {beside.some(nameless)}")
    manifest = Manifest(
        status="committed",
        archive_id=left.archive_id,
        seq=seq,
        parent=making.parent,
        run_id=making.owner,
        tool=f"kbackup {__version__}",
        started_at=now(),
        committed_at=now(),
        cluster_id=next((m.cluster_id for m in reversed(left.manifests) if m.cluster_id), ""),
        isolation_level=_isolation(left),
        topics=states,
        losses=() if making.made else losses_of(left, chosen),
        warnings=tuple(chosen.warnings) if newest else (),
        totals=totals(len(states), len({(s.topic, s.partition) for s in added}), added, len(groups.groups)),
        repaired=Repaired(why=making.why, restore_points=making.lost, not_known=tuple(not_known)),
    )
    return manifest, {
        layout.SEGMENTS: encode_segments(added),
        layout.GROUPS: dump(groups),
        layout.METADATA: dump(beside.metadata_of(left, topics, captured)),
    }


def _added(making: _Making, topics: Sequence[Topic]) -> list[Segment]:
    """The segments of `topics` that no table has yet, which counts them among those that one has."""
    wanted = set(topics)
    every = (s for place, some in sorted(making.chosen.segments.items()) if place[:2] in wanted for s in some)
    added = [s for s in every if s.key not in making.tabled]
    making.tabled |= {s.key for s in added}
    return added


def _untold_losses(making: _Making) -> list[str]:
    told = {m.seq for m in making.left.manifests} | making.left.past.keys()
    untold = [str(seq) for seq in making.lost if seq not in told]
    return [f"which losses were told of by restore point {', '.join(untold)}"] if untold else []


def _follow(making: _Making, check: Callable[[], None]) -> None:
    """What follows from the commits."""
    store, left = making.store, making.left
    if left.expirations:
        _expire_the_others(store, left, making.made, check)
    check()
    delete(store, sorted((k for k in left.sizes if k.startswith(layout.CHECKPOINTS)), reverse=True))
    archive = open_archive(store)
    for manifest in making.made:
        refresh_derived(archive, manifest, check=check)
    if left.expirations:
        settle(archive, check)


def _expire_the_others(store: Store, left: Left, made: Sequence[Manifest], check: Callable[[], None]) -> None:
    """All before the new restore points `made` is gone, and what is left of it is what the first of them has: one
    expiration in the place of those before. Damaged files of those go: this one says all that they said."""
    first, before = made[0], left.points.expired
    there = {(t.name, t.incarnation) for manifest in made for t in manifest.topics}
    # those of the restore points that this repair gives up are in the first new one
    losses = tuple(loss for link in left.points.gone for loss in link.losses)
    bare = Archive(store, ArchiveInfo(id=left.archive_id, created_at=""))
    table = encode_folded([with_seq(bare.table(first), first.seq)])
    document = Expired(
        archive_id=left.archive_id,
        number=left.expirations + 1,
        at=now(),
        upto=first.seq,
        segments=file_sum(table),
        gone=(Gone(parent=None, last=first.seq - 1, restore_points=0, expired_at=now(), losses=losses),),
        topics=tuple(
            t for t in (before.topics if before is not None else ()) if (t.name, t.incarnation) in there
        ),
    )
    check()
    store.put(segments_key(document.number, document.segments), table)
    store.put_new(layout.expiration_key(document.number, layout.EXPIRED), dump(document))
    bad = {finding.file for finding in left.findings if finding.file.startswith(layout.EXPIRATIONS)}
    delete(store, sorted(bad & left.sizes.keys()))


def _commit(
    making: _Making, manifest: Manifest, parts: Mapping[str, bytes], check: Callable[[], None]
) -> Manifest:
    archive = Archive(making.store, ArchiveInfo(id=making.left.archive_id, created_at=""))
    check()
    intent = derived.intent_of(manifest)
    if (
        making.left.expirations and not making.made
    ):  # its parent never was: nothing may say so before the commit
        newest = max((m.seq for m in making.left.manifests), default=None)
        intent = msgspec.structs.replace(intent, parent=newest)
    archive.store.put_new(layout.backup_key(manifest.seq, layout.INTENT), dump(intent))
    sums = {name: put_part(archive, manifest.seq, name, data) for name, data in parts.items()}
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    whole = Manifest(**fields | {"files": sums, "committed_at": now()})
    check()
    publish(archive, whole)
    key = layout.backup_key(manifest.seq, layout.MANIFEST)
    return load(Manifest, archive.store.get(key), key)


def _isolation(left: Left) -> Literal["read_committed", "read_uncommitted"]:
    """What any run says that it was not careful about holds for what is made of all."""
    each: list[Point | Intent] = [*left.manifests, *left.past.values(), *left.intents.values()]
    levels = {one.isolation_level for one in each}
    return "read_uncommitted" if "read_uncommitted" in levels else "read_committed"
