"""Objects from one store to another as they are stored, checked against what the archive says of them on the way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from awscrt.checksums import crc64nvme

from kbackup.archive import layout
from kbackup.archive.segments.table import Segment
from kbackup.archive.verify.objects import index_size
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, RefusedError
from kbackup.store.base import Store
from kbackup.store.crypt.raw import read_chunks, size_of, stored

THREADS = 8
_FEW = 256
"""Objects that are asked for one by one; of more, the whole folder is listed, a thousand a request."""
_DAMAGED = "run 'kbackup verify', which lists every finding; nothing of this object was copied"
_IN_THE_WAY = "delete it by hand while no copy runs, then run the copy again; no restore point there has it"
DIVERGED = "use another address: something other than 'kbackup copy' wrote to this one"


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
    """Return the objects of `due` that are not at `target`. `RefusedError` for an object that is there and is not
    whole, by size or by the checksum that `target` keeps: a copy deletes and replaces nothing that a later copy may
    send."""
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
        for each, good in zip(there, whole, strict=True):
            if not good:
                raise RefusedError(f"file {each.key} at {target.url} is damaged", _IN_THE_WAY)
    return [each for each in due if each.key not in sizes]


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
    """Copy one object, and return its stored bytes. `CorruptError` where it is not what the archive says, and nothing
    is left at `target` then; `RefusedError` where other bytes arrived than were sent, and stay."""
    crc = sent_crc = sent = 0
    with stored(target).upload(due.key) as upload:
        for piece, plain in read_chunks(source, due.key, due.size):
            sent += len(piece)
            sent_crc = crc64nvme(piece, sent_crc)
            crc = sent_crc if plain is piece else crc64nvme(plain, crc)
            upload.write(piece)
        if f"{crc:016x}" != due.crc:
            raise CorruptError(f"file {due.key} is not what its manifest says (checksum)", _DAMAGED)
        try:
            arrived = upload.commit()
        except AlreadyExistsError:
            missing(target, [due])
            return sent
    if arrived != (sent, sent_crc):
        raise RefusedError(
            f"file {due.key} arrived at {target.url} as other bytes than were sent", _IN_THE_WAY
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
