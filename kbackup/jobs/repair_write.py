"""The writes of a repair, each in an order that leaves an archive no worse where it is cut off: data keys and records
are never written, manifests are created, what is derived is replaced."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.commit import publish, put_part, refresh_derived
from kbackup.archive.expired import segments_key
from kbackup.archive.fold import fold
from kbackup.archive.lease import read_lease
from kbackup.archive.models import (
    ArchiveInfo,
    Expired,
    Gone,
    Intent,
    Lease,
    Manifest,
    Point,
    Repaired,
    Totals,
    dump,
    file_sum,
    load,
    now,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.repair import beside, derived
from kbackup.archive.repair.choose import Chosen, LeftOut
from kbackup.archive.repair.left import Left
from kbackup.archive.repair.point import known_topics, layers, losses_of, topic_state
from kbackup.archive.segments import Segment, encode_folded, encode_segments, with_seq
from kbackup.archive.settle import settle
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, PreconditionError
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt.raw import stored


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """A file that was made anew, and how."""

    file: str
    what: str


def free_the_lease(store: Store) -> None:
    """Replace a lease that can't be read, which nobody could take or give back, by one that was given back."""
    try:
        read_lease(store)
    except NotFoundError:
        return
    except CorruptError:
        _, etag = store.get_with_etag(layout.LOCK)
        free = Lease(
            owner=uuid.uuid4().hex,
            host="",
            pid=0,
            command="kbackup repair",
            acquired_at=now(),
            expires_at=now(),
            released=True,
        )
        try:
            store.replace(layout.LOCK, dump(free), etag)
        except (PreconditionError, NotFoundError):
            return  # somebody else saw to it: who holds it now shows in taking it


def put_info(store: Store, left: Left, confirm: bool) -> list[Mended]:
    """archive.json, where it is missing or damaged: under the id that everything else has, or a new one."""
    if left.has_info:
        return []
    what = "written anew" if left.archive_id else "written anew, with a new id: nothing tells the old one"
    if confirm:
        left.archive_id = left.archive_id or uuid.uuid4().hex
        began = min((m.started_at for m in left.manifests), default=now())
        data = dump(ArchiveInfo(id=left.archive_id, created_at=began, encryption=encryption_of(store)))
        if layout.ARCHIVE in left.sizes:
            store.put(layout.ARCHIVE, data)  # it can't be read: nobody relies on it
        else:
            store.put_new(layout.ARCHIVE, data)
        left.has_info = True
    return [Mended(layout.ARCHIVE, what)]


def write_derived(
    store: Store, files: Mapping[str, bytes], confirm: bool, check: Callable[[], None]
) -> list[Mended]:
    for key, data in files.items():
        if confirm:
            check()
            store.put(key, data)
    return [Mended(key, "written anew") for key in files]


def rebuild_checkpoints(store: Store, left: Left, confirm: bool, check: Callable[[], None]) -> list[Mended]:
    """Damaged ones go, all of them: the newest first, so that none is left that names a part that is gone."""
    keys = derived.damaged_checkpoints(store, left)
    if keys and confirm:
        check()
        _delete(store, sorted(keys, reverse=True))
        archive = open_archive(store)
        if archive.head is not None:
            fold(archive, archive.head, check)
    return [Mended(key, "removed: checkpoints are made anew") for key in keys]


def commit_points(
    store: Store,
    left: Left,
    chosen: Chosen,
    confirm: bool,
    owner: str,
    check: Callable[[], None],
    why: Literal["lost", "adopted"] = "lost",
) -> list[Manifest]:
    """The new restore points, oldest first: one, and one before it for each older incarnation of a topic. Where it is
    not confirmed they are made and not written."""
    known = known_topics(left, chosen)
    parent = chosen.kept[-1].seq if chosen.kept else None
    if left.expirations:  # all before is gone, by an expiration that follows
        parent = left.last
    tabled = set(chosen.tabled)
    lost = tuple(seq for seq in left.lost_after(chosen.kept[-1].seq if chosen.kept else 0))
    made: list[Manifest] = []
    archive = Archive(store, ArchiveInfo(id=left.archive_id, created_at=""))
    order = layers(chosen, known)
    for number, topics in enumerate(order):
        seq = left.last + 1 + number
        newest = topics is order[-1]
        captured = beside.captures(left, {t: known[t].id for t in topics}) if newest else {}
        groups = beside.groups_of(store, left, topics, captured)
        states = tuple(topic_state(seq, topic, known[topic], left, chosen, groups) for topic in topics)
        added = [
            s
            for (name, incarnation, _), some in sorted(chosen.segments.items())
            if (name, incarnation) in set(topics)
            for s in some
            if s.key not in tabled
        ]
        tabled |= {s.key for s in added}
        parts = {
            layout.SEGMENTS: encode_segments(added),
            layout.GROUPS: dump(groups),
            layout.METADATA: dump(beside.metadata_of(left, topics, captured)),
        }
        untold = [
            str(seq) for seq in lost if seq not in left.past and seq not in {m.seq for m in left.manifests}
        ]
        not_known = (
            [f"which losses were told of by restore point {', '.join(untold)}"] if untold and not made else []
        )
        not_known += [*chosen.not_known, *beside.told(left, topics, captured)]
        if nameless := [s.name for s in states if not s.id]:
            not_known.append(f"Kafka's ids of {beside.some(nameless)}")
        manifest = Manifest(
            status="committed",
            archive_id=left.archive_id,
            seq=seq,
            parent=parent,
            run_id=owner,
            tool=f"kbackup {__version__}",
            started_at=now(),
            committed_at=now(),
            cluster_id=next((m.cluster_id for m in reversed(left.manifests) if m.cluster_id), ""),
            isolation_level=_isolation(left),
            topics=states,
            losses=losses_of(left, chosen) if not made else (),
            warnings=tuple(chosen.warnings) if newest else (),
            totals=_totals(states, added, len(groups.groups)),
            repaired=Repaired(why=why, restore_points=lost if not made else (), not_known=tuple(not_known)),
        )
        if confirm:
            manifest = _commit(archive, manifest, parts, check)
        made.append(manifest)
        parent = seq
    if confirm and left.expirations:
        _expire_the_others(store, left, made[0], check)
    if confirm:
        _delete(store, sorted((k for k in left.sizes if k.startswith(layout.CHECKPOINTS)), reverse=True))
        fresh = open_archive(store)
        for manifest in made:
            refresh_derived(fresh, manifest, check=check)
        if left.expirations:
            settle(fresh, check)
    return made


def _expire_the_others(store: Store, left: Left, first: Manifest, check: Callable[[], None]) -> None:
    """All before the new restore point is gone, and what is left of it is what that has: one expiration in the place of
    those before. Damaged files of those go: this one says all that they said."""
    bare = Archive(store, ArchiveInfo(id=left.archive_id, created_at=""))
    table = encode_folded([with_seq(bare.table(first), first.seq)])
    document = Expired(
        archive_id=left.archive_id,
        number=left.expirations + 1,
        at=now(),
        upto=first.seq,
        segments=file_sum(table),
        gone=(Gone(parent=None, last=first.seq - 1, restore_points=0, expired_at=now(), losses=()),),
    )
    check()
    store.put(segments_key(document.number, document.segments), table)
    store.put_new(layout.expiration_key(document.number, layout.EXPIRED), dump(document))
    bad = {finding.file for finding in left.findings if finding.file.startswith(layout.EXPIRATIONS)}
    _delete(store, sorted(bad & left.sizes.keys()))


def _commit(
    archive: Archive, manifest: Manifest, parts: Mapping[str, bytes], check: Callable[[], None]
) -> Manifest:
    check()
    archive.store.put_new(layout.backup_key(manifest.seq, layout.INTENT), dump(derived.intent_of(manifest)))
    sums = {name: put_part(archive, manifest.seq, name, data) for name, data in parts.items()}
    fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    whole = Manifest(**fields | {"files": sums, "committed_at": now()})
    check()
    publish(archive, whole)
    key = layout.backup_key(manifest.seq, layout.MANIFEST)
    return load(Manifest, archive.store.get(key), key)


def _totals(states: Sequence[object], added: Sequence[Segment], groups: int) -> Totals:
    partitions = {(s.topic, s.partition) for s in added}
    return Totals(
        topics=len(states),
        partitions=len(partitions),
        segments=len(added),
        records=sum(s.count for s in added),
        bytes=sum(s.bytes for s in added),
        stored_bytes=sum(s.stored for s in added),
        groups=groups,
    )


def _isolation(left: Left) -> Literal["read_committed", "read_uncommitted"]:
    """What any run says that it was not careful about holds for what is made of all."""
    each: list[Point | Intent] = [*left.manifests, *left.past.values(), *left.intents.values()]
    levels = {one.isolation_level for one in each}
    return "read_uncommitted" if "read_uncommitted" in levels else "read_committed"


def set_aside(
    store: Store,
    seq: int,
    left_out: Sequence[LeftOut],
    sizes: Mapping[str, int],
    check: Callable[[], None],
) -> None:
    """What was left out goes from topics/ to damaged/<seq>/, as it is stored, with its index: a later backup may
    need the names. It is deleted where it was when it is there."""
    raw = stored(store)
    for each in left_out:
        for key in (each.key, layout.index_key_of(each.key)):
            if key not in sizes:
                continue
            check()
            try:
                with raw.upload(layout.damaged_key(seq, key)) as upload:
                    for chunk in raw.open_range(key, 0, raw.stat(key).size):
                        upload.write(chunk)
                    upload.commit()
            except AlreadyExistsError:
                pass  # a repair that was cut off had come so far
            _delete(store, [key])


def _delete(store: Store, keys: Sequence[str]) -> None:
    for failed in store.delete(keys):
        raise failed.error
