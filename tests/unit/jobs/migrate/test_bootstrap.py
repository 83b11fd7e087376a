"""The file that a fresh KRaft cluster starts from, made of a restore point."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli import main
from kbackup.config.models import Backup
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.metadata import merge
from kbackup.jobs.migrate import archive as archive_job
from kbackup.jobs.migrate.archive import archive_metadata, make_bootstrap
from kbackup.kafka.metadata_log.codec import record
from kbackup.kafka.metadata_log.image import MetadataImage, reading_of
from kbackup.kafka.metadata_log.log import read_snapshot
from kbackup.metadata.entities import DelegationToken, Reading
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.metadata_entities import by_brokers, by_zookeeper, quota, token, user
from tests.support.metadata_records import write_snapshot

LATER = 1 << 45
USERS = (user(), user("b o%b"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "formatted"
    folder.mkdir()
    features = [record("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 30})]
    return write_snapshot(folder, 0, features)


def key_of(folder: Path) -> str:
    key = folder / "key"
    key.write_text(generate_key())
    key.chmod(0o600)
    return f"file:{key}"


def archive_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *readings: Reading, encrypted: bool = True
) -> Archive:
    store = open_store(
        str(folder / "archive"), key=key_of(folder) if encrypted else "", key_class=layout.key_class
    )
    merged = merge(readings, "2026-01-05T00:00:00.000Z", 1)
    monkeypatch.setattr(archive_job, "read_all", lambda sources: merged)
    archive_metadata(Backup(), Sources(kafka={"bootstrap.servers": "b:1"}), store, Silent())
    return open_archive(store)


def test_users_quotas_and_valid_tokens(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valid = DelegationToken(
        **{name: getattr(token(), name) for name in DelegationToken.__struct_fields__}
        | {"id": "t2", "expires_at": LATER}
    )
    zookeeper = by_zookeeper(scram_users=USERS, delegation_tokens=(token(), valid))
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), zookeeper)
    report = make_bootstrap(archive, "latest", base, tmp_path / "out")
    file = tmp_path / "out" / "bootstrap.checkpoint"
    assert report.file == str(file)
    assert (report.scram_users, report.client_quotas, report.delegation_tokens) == (2, 1, 1)
    assert (report.expired, report.live) == (("t1",), ("acls", "configs"))
    assert file.stat().st_mode & 0o777 == 0o600
    image = MetadataImage()
    for each in read_snapshot(file):
        image.replay(each.record)
    found = reading_of(image, "")
    assert (found.scram_users, found.client_quotas) == (USERS, (quota(),))
    assert [t.id for t in found.delegation_tokens or ()] == ["t2"]
    assert report.next_producer_id == found.next_producer_id == 2000
    assert [f.name for f in found.features or ()] == ["metadata.version"]


def test_without_a_producer_id_block_none_is_written(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper(next_producer_id=None))
    assert make_bootstrap(archive, "latest", base, tmp_path / "out").next_producer_id is None
    records = read_snapshot(tmp_path / "out" / "bootstrap.checkpoint")
    assert "ProducerIdsRecord" not in {each.record.name for each in records}


def test_without_secrets_it_is_refused(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper(), encrypted=False)
    with pytest.raises(
        RefusedError,
        match=r"no secrets of SCRAM user alice; run .kbackup migrate archive. into an encrypted archive",
    ):
        make_bootstrap(archive, "latest", base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_users_that_were_not_captured(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(scram_users=None))
    with pytest.raises(RefusedError, match="were not captured"):
        make_bootstrap(archive, "latest", base, tmp_path / "out")


def test_files(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper())
    with pytest.raises(UsageError, match="no such file"):
        make_bootstrap(archive, "latest", tmp_path / "missing", tmp_path / "out")
    make_bootstrap(archive, "latest", base, tmp_path / "out")
    with pytest.raises(UsageError, match="is there already"):
        make_bootstrap(archive, "latest", base, tmp_path / "out")


def test_the_command_names_no_secret(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper())
    monkeypatch.chdir(tmp_path)
    command = [
        "migrate",
        "bootstrap",
        "-a",
        str(tmp_path / "archive"),
        "--encryption-key",
        f"file:{tmp_path}/key",
    ]
    assert main([*command, "--base", str(base), "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert (
        "restore point 1, 1 SCRAM user, 1 client quota, 0 delegation tokens, producer ids from 2000 on\n"
        in out
    )
    assert "kbackup restore --with acls,configs" in out
    for secret in ("c3RvcmVk", "stored"):
        assert secret not in out + err
