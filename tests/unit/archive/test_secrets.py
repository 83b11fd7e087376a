"""Encrypted archives, and the secrets that an archive without encryption leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.archive.secrets import is_sensitive, without_secrets
from kbackup.jobs import verify as job
from kbackup.metadata.entities import BrokerConfig, DelegationToken, GroupConfig, ScramUser, not_carried_entry
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.keyring import KEYS
from tests.support.archives import make_archive
from tests.support.key_files import encrypted
from tests.support.memory_store import MemoryStore

HIDDEN = "not-to-be-seen"
FULL = Metadata(
    captured_at="now",
    cluster_id="c",
    brokers=1,
    topics=(),
    scram_users=(
        ScramUser(
            user="alice", mechanism="SCRAM-SHA-256", iterations=4096, salt=HIDDEN, stored_key=HIDDEN, server_key=HIDDEN
        ),
    ),
    delegation_tokens=(
        DelegationToken(
            id="t", owner="User:a", requester="User:a", renewers=(), issued_at=1, expires_at=2, max_at=3, hmac=HIDDEN
        ),
    ),
    broker_configs=(
        BrokerConfig(broker=1, name="ssl.keystore.password", value=HIDDEN),
        BrokerConfig(broker=None, name="log.segment.bytes", value="1"),
    ),
    group_configs=(GroupConfig(group="g", name="x.secret", value=HIDDEN),),
)

pytestmark = pytest.mark.usefixtures("tasks_run_here")


def test_without_secrets_the_rest_stays_and_each_kind_is_named() -> None:
    bare = without_secrets(FULL)
    assert HIDDEN not in repr(bare)
    assert [(u.user, u.iterations) for u in bare.scram_users or ()] == [("alice", 4096)]
    assert [t.id for t in bare.delegation_tokens or ()] == ["t"]
    assert bare.broker_configs == (
        BrokerConfig(broker=1, name="ssl.keystore.password", value=None),
        BrokerConfig(broker=None, name="log.segment.bytes", value="1"),
    )
    assert {(n.what, n.reason) for n in bare.not_carried} == {
        ("secrets of SCRAM users", "secret"),
        ("secrets of delegation tokens", "secret"),
        ("values of sensitive broker configs", "secret"),
        ("values of sensitive group configs", "secret"),
    }
    assert without_secrets(bare) == bare


def test_metadata_without_secrets_is_unchanged() -> None:
    plain = Metadata(captured_at="now", cluster_id="c", brokers=1, topics=(), not_carried=(NOT_THERE,))
    assert without_secrets(plain) == plain
    assert without_secrets(replace(plain, scram_users=(), delegation_tokens=())).not_carried == (NOT_THERE,)


NOT_THERE = not_carried_entry("acls", "not there", "so it is")


@pytest.mark.parametrize("key", ["", "env:KBACKUP_TEST_KEY"])
def test_a_document_passes_the_rule_when_it_is_stored(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBACKUP_TEST_KEY", "A" * 43 + "=")
    store = open_store(str(tmp_path / "archive"), key=key, key_class=layout.key_class)
    archive = open_or_create(store)
    with HeldLease(store, "a test", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        ref = writing.put_document(1, layout.METADATA, FULL)
    assert (HIDDEN.encode() in archive.read_document(ref)) == bool(key)
    assert not any(HIDDEN.encode() in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        ("ssl.keystore.password", True),
        ("listener.name.sasl.scram-sha-512.sasl.jaas.config", True),
        ("delegation.token.secret.key", True),
        ("ssl.keystore.key", True),
        ("sasl.oauthbearer.client.credentials.client.secret", True),
        ("delegation.token.max.lifetime.ms", False),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("ssl.keystore.location", False),
        ("log.cleaner.threads", False),
    ],
)
def test_which_configs_are_sensitive(name: str, sensitive: bool) -> None:
    assert is_sensitive(name) == sensitive


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder that holds the key."""
    return tmp_path_factory.mktemp("encrypted")


@pytest.fixture(scope="module")
def inner(folder: Path) -> MemoryStore:
    store = MemoryStore()
    make_archive(encrypted(store, folder))
    return store


@pytest.fixture
def store(inner: MemoryStore, folder: Path) -> CryptStore:
    return encrypted(inner, folder)


def damaged(store: CryptStore) -> set[str]:
    """The files that a whole verification names."""
    report = job.verify(store, "all", False, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    return {finding.file for finding in report.findings}


def sealed(inner: MemoryStore) -> list[str]:
    keys = [info.key for info in inner.list()]
    return [key for key in keys if not layout.key_class(key).plain and not key.startswith(KEYS)]


def test_encrypted_archive_reads_as_any_other(store: CryptStore) -> None:
    plain = make_archive(MemoryStore())
    archive = open_archive(store)
    assert [(p.number, p.records) for p in archive.restore_points] == [
        (p.number, p.records) for p in plain.restore_points
    ]
    (one, other) = (a.segments(a.restore_point("latest")) for a in (archive, plain))
    assert one == other  # sizes and checksums are those of the plain bytes
    sizes = {info.key: info.size for info in store.list(layout.TOPICS)}
    assert sizes == {info.key: info.size for info in plain.store.list(layout.TOPICS)}
    assert damaged(store) == set()


@pytest.mark.exhaustive
def test_every_object_is_guarded(store: CryptStore, inner: MemoryStore) -> None:
    """A bit of it, and in turns another object of the archive in its place, bytes more, bytes less."""
    keys = sealed(inner)
    assert len(keys) > 25
    whole = {key: inner.get(key) for key in keys}
    for n, (key, other) in enumerate(zip(keys, [*keys[1:], keys[0]], strict=True)):
        flipped = bytearray(whole[key])
        flipped[-1] ^= 4
        changed = (whole[other], whole[key] + whole[key][-17:], whole[key][:-17])[n % 3]
        for data in (bytes(flipped), changed):
            inner.put(key, data)
            assert key in damaged(store), key
        inner.put(key, whole[key])
    assert damaged(store) == set()


def test_an_older_version_of_a_derived_file(store: CryptStore, inner: MemoryStore) -> None:
    """Genuine, so that encryption does not tell, but not what the restore points say."""
    (key,) = [k for k in sealed(inner) if k.endswith("orders/index_partition_000")]
    now = inner.get(key)
    older = store.get(key)[:-60]
    store.put(key, older)
    assert store.get(key) == older
    assert damaged(store) == {key}
    inner.put(key, now)


def test_a_lost_data_key_names_what_it_encrypted(store: CryptStore, inner: MemoryStore, folder: Path) -> None:
    files = {info.key: inner.get(info.key) for info in inner.list(KEYS)}
    inner.delete(files)
    try:
        fresh = encrypted(inner, folder)
        found = damaged(fresh)
        assert {key for key in sealed(inner) if key.startswith(layout.CATALOG)} & found
    finally:
        for path, data in files.items():
            inner.put(path, data)
    assert damaged(store) == set()
