"""The file from which a new KRaft cluster starts, with metadata that only the log can carry.

`kafka-storage format` writes it: bootstrap.checkpoint up to Kafka 4.3, and since 4.4 the first snapshot of the metadata
log, which has the voters of the quorum as well.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence

from kbackup.errors import CorruptError, RefusedError
from kbackup.metadata.entities import ClientQuota, DelegationToken, ScramUser
from kbackup.migrate.metadata_log.codec import MetadataRecord, record
from kbackup.migrate.metadata_log.image import MECHANISMS
from kbackup.migrate.metadata_log.log import PARTITION, check_snapshot, encode_batch, read_batches

NAME = "bootstrap.checkpoint"
"""The file up to Kafka 4.3, in the controller's metadata.log.dir. Kafka 4.4 does not read it."""
FIRST_SNAPSHOT = f"{PARTITION}/00000000000000000000-0000000000.checkpoint"
"""The file since Kafka 4.4, below the controller's metadata.log.dir."""
_RECORDS_OF_A_BATCH = 1000
_FORMAT_ANEW = "make a new one with 'kafka-storage format'"


def write_bootstrap(formatted: bytes, records: Sequence[MetadataRecord], name: str = NAME) -> bytes:
    """Return the file `name`, which `kafka-storage format` wrote as `formatted`, with metadata records added.

    They come after the records of `formatted` and before its footer: where both set the same thing, the added record
    counts. `CorruptError` if `formatted` is not such a file."""
    try:
        found = read_batches(io.BytesIO(formatted), name, len(formatted))
        batches = list(check_snapshot(found, name))
    except CorruptError as error:
        raise CorruptError(error.message, _FORMAT_ANEW) from None
    # The footer is cut off and written again behind the added records, whose offsets go on from the ones before: a
    # snapshot ends with its footer.
    footer = batches[-1]
    if len(footer.records) != 1:
        raise CorruptError(f"{name}: the footer has other records in its batch", _FORMAT_ANEW)
    data = formatted[: footer.position]
    offset = footer.base_offset
    for start in range(0, len(records), _RECORDS_OF_A_BATCH):
        batch = records[start : start + _RECORDS_OF_A_BATCH]
        data += encode_batch(offset, footer.epoch, footer.timestamp, batch)
        offset += len(batch)
    last = [kept.record for kept in footer.records]
    return data + encode_batch(offset, footer.epoch, footer.timestamp, last)


def scram_record(user: ScramUser) -> MetadataRecord:
    """Return the record of a SCRAM credential. `RefusedError` if its secrets are not known."""
    numbers = {name: number for number, name in MECHANISMS.items()}
    mechanism = numbers.get(user.mechanism)
    if mechanism is None:
        raise RefusedError(f"SCRAM user {user.user}: unknown mechanism {user.mechanism}", "use a newer kbackup")
    if user.salt is None or user.stored_key is None or user.server_key is None:
        raise RefusedError(
            f"SCRAM user {user.user}: the secrets are not known", "take an encrypted backup that reads them"
        )
    return record(
        "UserScramCredentialRecord",
        {
            "name": user.user,
            "mechanism": mechanism,
            "salt": base64.b64decode(user.salt),
            "storedKey": base64.b64decode(user.stored_key),
            "serverKey": base64.b64decode(user.server_key),
            "iterations": user.iterations,
        },
    )


def quota_records(quota: ClientQuota) -> Iterator[MetadataRecord]:
    """Yield a record for each quota of an entity."""
    entity = [{"entityType": kind, "entityName": name} for kind, name in quota.entity.items()]
    for key, value in quota.quotas.items():
        yield record("ClientQuotaRecord", {"entity": entity, "key": key, "value": value})


def token_record(token: DelegationToken) -> MetadataRecord:
    """Return the record of a delegation token. Its HMAC stays the same where delegation.token.secret.key does."""
    return record(
        "DelegationTokenRecord",
        {
            "owner": token.owner,
            "requester": token.requester,
            "renewers": list(token.renewers),
            "issueTimestamp": token.issued_at,
            "maxTimestamp": token.max_at,
            "expirationTimestamp": token.expires_at,
            "tokenId": token.id,
        },
    )


def producer_id_record(next_producer_id: int) -> MetadataRecord:
    """Return the record after which no producer gets an id that the old cluster had given."""
    return record("ProducerIdsRecord", {"brokerId": -1, "nextProducerId": next_producer_id})
