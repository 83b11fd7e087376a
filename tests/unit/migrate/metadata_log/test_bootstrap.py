"""The file that a new KRaft cluster starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.errors import CorruptError, RefusedError
from kbackup.metadata.entities import ClientQuota, DelegationToken, ScramUser
from kbackup.migrate.metadata_log.checkpoint import (
    FIRST_SNAPSHOT,
    producer_id_record,
    quota_records,
    scram_record,
    token_record,
    write_bootstrap,
)
from kbackup.migrate.metadata_log.codec import MetadataRecord, record
from kbackup.migrate.metadata_log.image import MetadataImage, reading_of
from kbackup.migrate.metadata_log.log import encode_batch, read_snapshot
from tests.support.metadata_records import FOOTER, HEADER, write_snapshot

USER = ScramUser(
    user="b o%b", mechanism="SCRAM-SHA-256", iterations=8192, salt="cw==", stored_key="aw==", server_key="dg=="
)
QUOTA = ClientQuota(entity={"user": None, "client-id": "app 1"}, quotas={"a": 1.0, "b": 2.0})
TOKEN = DelegationToken(
    id="t", owner="User:a", requester="User:a", renewers=("User:b",), issued_at=1, expires_at=2, max_at=3
)


def _base(folder: Path) -> bytes:
    features = [record("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 30})]
    return write_snapshot(folder, 0, features).read_bytes()


def test_added_records_are_read_back(tmp_path: Path) -> None:
    base = _base(tmp_path)
    records = [scram_record(USER), *quota_records(QUOTA), token_record(TOKEN), producer_id_record(5000)]
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(write_bootstrap(base, records))
    image = MetadataImage()
    read = list(read_snapshot(path))
    assert [r.offset for r in read] == list(range(3 + len(records)))
    for each in read:
        image.replay(each.record)
    reading = reading_of(image, "")
    assert reading.scram_users == (USER,)
    assert reading.client_quotas == (QUOTA,)
    assert reading.delegation_tokens == (TOKEN,)
    assert reading.next_producer_id == 5000
    assert [f.name for f in reading.features or ()] == ["metadata.version"]


def test_the_first_snapshot_of_kafka_4_4_keeps_the_voters_of_the_quorum(tmp_path: Path) -> None:
    voters = MetadataRecord("VotersRecord", 6, 0, {"version": 0, "voters": []}, control=True)
    level = record("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 33})
    first = tmp_path / FIRST_SNAPSHOT
    first.parent.mkdir()
    header = encode_batch(0, 0, 0, [HEADER, voters])
    first.write_bytes(header + encode_batch(2, 0, 0, [level]) + encode_batch(3, 0, 0, [FOOTER]))
    first.write_bytes(write_bootstrap(first.read_bytes(), [scram_record(USER)], first.name))
    names = [each.record.name for each in read_snapshot(first)]
    added = "UserScramCredentialRecord"
    assert names == ["SnapshotHeaderRecord", "VotersRecord", "FeatureLevelRecord", added, "SnapshotFooterRecord"]


def test_many_records_make_several_batches(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(write_bootstrap(_base(tmp_path), [scram_record(USER)] * 2500))
    assert [r.offset for r in read_snapshot(path)] == list(range(2503))


def test_nothing_added_changes_nothing(tmp_path: Path) -> None:
    base = _base(tmp_path)
    assert write_bootstrap(base, []) == base


def test_what_is_no_bootstrap_file_is_refused(tmp_path: Path) -> None:
    base = _base(tmp_path)
    header, footer = (encode_batch(0, 1, 0, [each]) for each in (HEADER, FOOTER))
    for bad, problem in (
        (b"", "the snapshot has no footer"),
        (base[:-1], "ends within a batch"),
        (base[: -len(footer)], "the snapshot has no footer"),
        (footer, "has a SnapshotFooterRecord at offset 0"),
        (header + base[-len(footer) :], "a batch at offset 2, after the one that ends at 1"),
        (base[:-1] + b"\1", "checksum"),
    ):
        with pytest.raises(CorruptError, match=f"bootstrap.checkpoint.*{problem}") as raised:
            write_bootstrap(bad, [])
        assert raised.value.hint == "make a new one with 'kafka-storage format'"


def test_credentials_without_their_secrets_are_refused() -> None:
    with pytest.raises(RefusedError, match="SCRAM user u: the secrets are not known"):
        scram_record(ScramUser(user="u", mechanism="SCRAM-SHA-256", iterations=4096))
    with pytest.raises(RefusedError, match="unknown mechanism 3"):
        scram_record(ScramUser(user="u", mechanism="3", iterations=4096))
