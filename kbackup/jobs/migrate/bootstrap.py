"""The job of `kbackup migrate bootstrap`: the bootstrap.checkpoint that a fresh KRaft cluster starts from.

It holds what no running cluster takes: the stored keys of SCRAM users, delegation tokens and the next producer id.
Client quotas go with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kbackup.archive.models import Metadata
from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError, UsageError
from kbackup.kafka.metadata_log.bootstrap import (
    NAME,
    producer_id_record,
    quota_records,
    scram_record,
    token_record,
    write_bootstrap,
)
from kbackup.kafka.metadata_log.codec import Record
from kbackup.util.text import shorten

_SOME = 5
_WHOLE = (
    "run 'kbackup migrate archive' into an encrypted archive, "
    "with zookeeper.connect or metadata.log.dir in [source]"
)


@dataclass(frozen=True)
class BootstrapReport:
    """`expired` are the ids of delegation tokens that were left out. `next_producer_id` is the first id that the old
    cluster had in no block; None where the restore point has none. `live` are the words for `restore --with` of what
    the archive has and the file doesn't set."""

    restore_point: int
    file: str
    scram_users: int
    client_quotas: int
    delegation_tokens: int
    next_producer_id: int | None
    expired: tuple[str, ...]
    live: tuple[str, ...]


def make_bootstrap(archive: Archive, backup: str, base: Path, out: Path) -> BootstrapReport:
    """Write `out`/bootstrap.checkpoint: `base`, which `kafka-storage format` made, with the users, quotas, tokens
    and the next producer id of a restore point. `RefusedError` where the restore point has no secrets."""
    point = archive.find_point(backup)
    metadata = archive.metadata(point.number)
    _check_whole(metadata, point.number)
    now = datetime.now(UTC).timestamp() * 1000
    tokens = metadata.delegation_tokens or ()
    valid = [token for token in tokens if token.expires_at > now]
    data = write_bootstrap(_read(base), [*_records(metadata), *map(token_record, valid)])
    path = out / NAME
    _write(path, data)
    return BootstrapReport(
        restore_point=point.number,
        file=str(path),
        scram_users=len(metadata.scram_users or ()),
        client_quotas=len(metadata.client_quotas or ()),
        delegation_tokens=len(valid),
        next_producer_id=metadata.next_producer_id,
        expired=tuple(token.id for token in tokens if token.expires_at <= now),
        live=tuple(_live(metadata)),
    )


def _check_whole(metadata: Metadata, number: int) -> None:
    if metadata.scram_users is None:
        raise RefusedError(f"restore point {number} has no SCRAM users: they were not captured", _WHOLE)
    without = [u.user for u in metadata.scram_users if None in (u.salt, u.stored_key, u.server_key)]
    if without:
        raise RefusedError(
            f"restore point {number} has no secrets of SCRAM user {shorten(without, _SOME)}", _WHOLE
        )


def _records(metadata: Metadata) -> Iterator[Record]:
    yield from map(scram_record, metadata.scram_users or ())
    for quota in metadata.client_quotas or ():
        yield from quota_records(quota)
    if metadata.next_producer_id is not None:
        yield producer_id_record(metadata.next_producer_id)


def _live(metadata: Metadata) -> Iterator[str]:
    if metadata.acls:
        yield "acls"
    if metadata.broker_configs or metadata.group_configs or metadata.client_metrics:
        yield "configs"


def _read(base: Path) -> bytes:
    try:
        return base.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{base}: {(error.strerror or str(error)).lower()}",
            f"name the {NAME} that 'kafka-storage format' wrote into the controller's metadata folder",
        ) from None


def _write(path: Path, data: bytes) -> None:
    """Create the file for its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UsageError(f"{path} is there already", "name another folder by --out") from None
    except OSError as error:
        raise UsageError(
            f"{path}: {(error.strerror or str(error)).lower()}", "name another folder by --out"
        ) from None
