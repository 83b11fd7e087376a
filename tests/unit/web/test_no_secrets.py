"""Commands and pages show everything of an encrypted archive but a cluster's secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.cli import main
from kbackup.config.models import Backup
from kbackup.jobs.metadata import merge
from kbackup.jobs.migrate import archive as job
from kbackup.jobs.migrate.archive import archive_metadata
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.metadata_entities import BROKER_SECRET, by_brokers, by_log, by_zookeeper, token, user
from tests.support.visits import crawl, visit

KEYS = ("Zmlyc3Qga2V5", "c2Vjb25kIGtleQ==")
SECRETS = (*KEYS, "aG1hYw==", "hush")
COMMANDS = (["info"], ["list"], ["log"], ["diff", "1", "2"], ["verify", "--quick"], ["ls"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two restore points, between which the user's password changed."""
    (tmp_path / "key").write_text(generate_key())
    (tmp_path / "key").chmod(0o600)
    store = open_store(str(tmp_path / "archive"), key=f"file:{tmp_path}/key", key_class=layout.key_class)
    for key in KEYS:
        zookeeper = by_zookeeper(scram_users=(user(key=key),), delegation_tokens=(token(),))
        log = by_log(scram_users=(user(key=key),))
        readings = [by_brokers(), zookeeper, log]
        merged = merge(readings, "2026-01-05T00:00:00.000Z", 1)
        monkeypatch.setattr(job, "read_all", lambda sources, merged=merged: merged)
        archive_metadata(Backup(), Sources(kafka={"bootstrap.servers": "b:1"}), store, Silent())
    archive = open_archive(store)
    assert archive.head is not None
    held = repr(archive.metadata(archive.head))
    assert all(secret in held for secret in SECRETS if secret != KEYS[0])
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("how", [[], ["--json"]], ids=["text", "json"])
def test_commands(
    root: Path, command: list[str], how: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    archive = ["-a", str(root / "archive"), "--set", f"encryption.key=file:{root}/key"]
    assert main([*command, *archive, *how]) == 0
    out, err = capsys.readouterr()
    assert out
    assert not [secret for secret in SECRETS if secret in out + err]


def test_pages(root: Path) -> None:
    store = open_store(str(root / "archive"), key=f"file:{root}/key", key_class=layout.key_class)
    pages = {address: html for address, _, html in crawl(visit(store), of_a_kind=3)}
    assert len(pages) > 3
    for address, html in pages.items():
        assert not [secret for secret in SECRETS if secret in html], address
    assert any(BROKER_SECRET.name in html for html in pages.values()), "the name of the config is no secret"
