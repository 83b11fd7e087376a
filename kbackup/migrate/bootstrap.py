"""The job of `kbackup migrate bootstrap`: the file that a fresh KRaft cluster starts from.

It holds what no running cluster takes: the stored keys of SCRAM users, delegation tokens and the next producer id.
Client quotas go with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kbackup.archive.models import Metadata
from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError, UsageError
from kbackup.metadata.entities import DelegationToken
from kbackup.migrate.metadata_log.checkpoint import (
    FIRST_SNAPSHOT,
    NAME,
    producer_id_record,
    quota_records,
    scram_record,
    token_record,
    write_bootstrap,
)
from kbackup.migrate.metadata_log.codec import MetadataRecord
from kbackup.util.text import join_names

_SOME = 5
_WHOLE = (
    "run 'kbackup migrate archive' into an encrypted archive, with zookeeper.connect or metadata.log.dir in [source]"
)


@dataclass(frozen=True)
class BootstrapReport:
    """`expired` are the ids of delegation tokens that were left out. `next_producer_id` is the first id that the old
    cluster had in no block; None if the restore point has none. `live` are the words for `restore --with` of what
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
    """Write a file into `out`, with the name of `base`, which `kafka-storage format` made: `base` with the users,
    quotas, tokens and the next producer id of a restore point. `RefusedError` if the restore point has no secrets."""
    point = archive.find_point(backup)
    metadata = archive.metadata(point.number)
    _check_secrets(metadata, point.number)
    now = datetime.now(UTC).timestamp() * 1000
    valid: list[DelegationToken] = []
    expired: list[str] = []
    for token in metadata.delegation_tokens or ():
        # A new cluster would take an expired token only to drop it: it is named instead.
        if token.expires_at > now:
            valid.append(token)
        else:
            expired.append(token.id)
    try:
        formatted = base.read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{base}: {why}",
            f"name the file that 'kafka-storage format' wrote into the controller's metadata folder: {NAME}, or "
            f"{FIRST_SNAPSHOT} of Kafka 4.4 and later",
        ) from None
    data = write_bootstrap(formatted, _records(metadata, valid), base.name)
    path = out / base.name
    _write(path, data)
    return BootstrapReport(
        restore_point=point.number,
        file=str(path),
        scram_users=len(metadata.scram_users or ()),
        client_quotas=len(metadata.client_quotas or ()),
        delegation_tokens=len(valid),
        next_producer_id=metadata.next_producer_id,
        expired=tuple(expired),
        live=tuple(_live_words(metadata)),
    )


def _check_secrets(metadata: Metadata, number: int) -> None:
    """Raise `RefusedError` if the metadata of a restore point has no SCRAM users, or one without its secrets."""
    if metadata.scram_users is None:
        raise RefusedError(f"restore point {number} has no SCRAM users: they were not captured", _WHOLE)
    without = [user.user for user in metadata.scram_users if None in (user.salt, user.stored_key, user.server_key)]
    if without:
        users = join_names(without, _SOME)
        raise RefusedError(f"restore point {number} has no secrets of SCRAM user {users}", _WHOLE)


def _records(metadata: Metadata, tokens: Iterable[DelegationToken]) -> list[MetadataRecord]:
    """Return the records to add to the file, in the order in which a controller reads them."""
    records = [scram_record(user) for user in metadata.scram_users or ()]
    for quota in metadata.client_quotas or ():
        records.extend(quota_records(quota))
    # Without it, the new cluster could give a producer an id that the old one had given to another.
    if metadata.next_producer_id is not None:
        records.append(producer_id_record(metadata.next_producer_id))
    records.extend(token_record(token) for token in tokens)
    return records


def _live_words(metadata: Metadata) -> list[str]:
    """Return the words for `restore --with` of what a running cluster takes, where the archive has any."""
    words: list[str] = []
    if metadata.acls:
        words.append("acls")
    if metadata.broker_configs or metadata.group_configs or metadata.client_metrics:
        words.append("configs")
    return words


def _write(path: Path, data: bytes) -> None:
    """Create the file for its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        # It holds secrets: its mode must be right before the first byte, and no file of others may be opened.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UsageError(f"{path} is there already", "name another folder by --out") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {why}", "name another folder by --out") from None
