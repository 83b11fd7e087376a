"""Objects from one store to another as they are stored, checked against what the archive says of them on the way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from awscrt.checksums import crc64nvme

from kbackup.archive import layout
from kbackup.archive.segments import Segment
from kbackup.archive.verify.objects import index_size
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, RefusedError
from kbackup.store.base import Store
from kbackup.store.crypt.raw import pieces, size_of, stored

THREADS = 8
_FEW = 256
"""Objects that are asked for one by one; of more, the whole folder is listed, a thousand a request."""
_DAMAGED = "the archive is damaged here: run 'kbackup verify'; nothing of it was copied"
DIVERGED = "something else wrote there: a copy is written by 'kbackup copy' alone; use another address"


class Due(NamedTuple):
    """An object of the archive: `size` and `crc` (CRC-64/NVME, 16 hex digits) are of its plain bytes."""

    key: str
    size: int
    crc: str


def objects_of(segment: Segment) -> Iterator[Due]:
    """The records, then the index."""
    yield Due(segment.key, segment.stored, segment.crc)
    yield Due(layout.index_key_of(segment.key), index_size(segment), segment.index_crc)


def missing(target: Store, due: list[Due]) -> list[Due]:
    """Those of `due` that are not whole at `target`, by size and by the checksum that it keeps. What is there and is
    not whole is removed: the caller sees to it that no restore point stands on it."""
    raw = stored(target)
    if len(due) > _FEW:
        wanted = {each.key for each in due}
        sizes = {entry.key: entry.size for entry in raw.list(layout.TOPICS) if entry.key in wanted}
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(lambda each: (each.key, _size(raw, each.key)), due)
            sizes = {key: size for key, size in found if size is not None}
    there = [each for each in due if each.key in sizes]
    with ThreadPoolExecutor(THREADS) as pool:
        whole = pool.map(lambda each: _whole(target, each, sizes[each.key]), there)
        kept = {each.key for each, good in zip(there, whole, strict=True) if good}
    for failed in raw.delete([each.key for each in there if each.key not in kept]):
        raise failed.error
    return [each for each in due if each.key not in kept]


def _size(raw: Store, key: str) -> int | None:
    try:
        return raw.stat(key).size
    except NotFoundError:
        return None


def _whole(target: Store, due: Due, size: int) -> bool:
    if size != size_of(target, due.size):
        return False
    kept = target.checksum(due.key)
    return kept is None or f"{kept:016x}" == due.crc


def send(source: Store, target: Store, due: Due) -> int:
    """Copy one object, and return its stored bytes. `CorruptError` where it is not what the archive says, or other
    bytes arrived than were sent; nothing is left at `target` then."""
    crc = sent_crc = sent = 0
    with stored(target).upload(due.key) as upload:
        for piece, plain in pieces(source, due.key, due.size):
            sent += len(piece)
            sent_crc = crc64nvme(piece, sent_crc)
            crc = sent_crc if plain is piece else crc64nvme(plain, crc)
            upload.write(piece)
        if f"{crc:016x}" != due.crc:
            raise CorruptError(f"file {due.key} is not what its manifest says (checksum)", _DAMAGED)
        try:
            arrived = upload.commit()
        except AlreadyExistsError:
            if missing(target, [due]):
                raise
            return sent
    if arrived != (sent, sent_crc):
        stored(target).delete([due.key])
        raise CorruptError(
            f"file {due.key} arrived at {target.url} as other bytes than were sent", "run it again"
        )
    return sent


def put_same(target: Store, key: str, data: bytes) -> None:
    """Create, as it is stored; `RefusedError` where there is something else."""
    raw = stored(target)
    try:
        raw.put_new(key, data)
    except AlreadyExistsError as error:
        if raw.get(key) != data:
            raise RefusedError(
                f"file {key} at {target.url} is another one than that of the archive", DIVERGED
            ) from error
