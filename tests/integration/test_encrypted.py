"""An encrypted archive on the real S3 server: backed up, verified and restored as any other, and nothing of it can be
read where it lies."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.catalog.merging import MergeSizes
from kbackup.archive.query.selection import Selection
from kbackup.jobs import spread
from kbackup.jobs.backup import task as backup_task
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.rewrite import Rewriting, rewrite
from kbackup.jobs.verify import VerifyReport, verify
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.archives import History, expired
from tests.support.secrets import know
from tests.support.truth import Position, assert_restored, commit, positions, read_topic

MARKER = f"marker-{secrets.token_hex(8)}"
KEY = "ENCRYPTED_ARCHIVE_KEY"


@dataclass(frozen=True)
class Encrypted:
    archive: Archive
    topic: str
    group: str
    store: CryptStore


@pytest.fixture(scope="module")
def key() -> str:
    return know("an archive's key", generate_key())


@pytest.fixture(autouse=True)
def in_the_environment(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process alone: Spark's workers were started without it."""
    monkeypatch.setenv(KEY, key)


def fill(broker: Broker, topic: str, numbers: range) -> None:
    producer = Producer(broker.client(log_level=0))
    for n in numbers:
        value = None if n % 10 == 0 else f"{MARKER} {n} ".encode() * (n % 50)
        headers: list[tuple[str, str | bytes | None]] = [(MARKER, str(n).encode())]
        producer.produce(topic, value, f"{MARKER}-{n}", n % 2, headers=headers, timestamp=1_700_000_000_000 + n)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def encrypted(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], key: str) -> Encrypted:
    """Two restore points: big segments of many frames, then small compressed ones."""
    topic, group = f"encrypted-{secrets.token_hex(6)}", f"{MARKER}-group"
    archive = new_archive()
    broker.create_topic(topic, partitions=3)
    options = ["--encryption-key", f"env:{KEY}", "--topic", topic, "--group", group]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, key)
        patch.setattr(backup_task, "MANY_FILES", 4)  # of six derived files
        fill(broker, topic, range(2000))
        commit(broker.bootstrap, group, {(topic, 0): Position(700, MARKER), (topic, 1): Position(1000)})
        kbackup.backup(archive, *options, "--compression", "none", "--segment-bytes", "400KiB")
        fill(broker, topic, range(2000, 2600))
        kbackup.backup(archive, *options, "--compression", "zstd", "--segment-bytes", "20KB")
    store = CryptStore(archive.store, Keyring(archive.store, f"env:{KEY}"), layout.key_class)
    return Encrypted(archive, topic, group, store)


def verified(encrypted: Encrypted, spark: SparkSession, quick: bool = False) -> VerifyReport:
    opened = open_store(
        encrypted.archive.url,
        {"s3": encrypted.archive.store._bucket.options},  # type: ignore[attr-defined]
        f"env:{KEY}",
        key_class=layout.key_class,
    )
    return verify(opened, "all", quick, lambda: spark, Silent())


def test_nothing_of_it_is_readable(encrypted: Encrypted) -> None:
    clear = {layout.ARCHIVE, layout.LOCK}
    stored = {key: encrypted.archive.store.get(key) for key in encrypted.archive.objects()}
    readable = [key for key, data in stored.items() if MARKER.encode() in data]
    assert not readable, f"objects with plain values: {readable}"
    plain = [key for key in stored if not key.startswith("keys/") and key not in clear]
    assert len(plain) > 20
    assert all(stored[key].startswith(b"KBCRYPT\x02") for key in plain)
    assert not any(encrypted.topic.encode() in stored[key] for key in plain)
    assert MARKER.encode() in b"".join(encrypted.store.get(key) for key in plain)  # a reader with the key has it
    assert len([key for key in stored if key.startswith("keys/")]) == 2  # a data key a run
    assert len({stored[key][8:24] for key in plain}) == 2


def test_encrypted_archive_is_verified_and_browsed(encrypted: Encrypted, spark: SparkSession, kbackup: Kbackup) -> None:
    for quick in (True, False):
        report = verified(encrypted, spark, quick)
        assert report.findings == ()
        assert report.segments > 10
        assert quick or report.read_records == 2600
    listed = kbackup("list", encrypted.archive.url, "--encryption-key", f"env:{KEY}")
    assert [point["number"] for point in listed.document["restore_points"]] == [1, 2]
    shown = kbackup.run("info", "--archive", encrypted.archive.url, encrypted.topic, "--encryption-key", f"env:{KEY}")
    assert encrypted.topic in str(shown)


def test_encrypted_archive_is_restored(encrypted: Encrypted, broker: Broker, kbackup: Kbackup) -> None:
    """By tasks that never had the key: they get the archive's data keys."""
    prefix = f"back-{secrets.token_hex(4)}"
    options = ["--encryption-key", f"env:{KEY}", "--map-regex", rf"^(.*)$={prefix}.\1"]
    report = kbackup.restore(encrypted.archive, *options, "--restore-id", prefix)
    assert report["missing"] == []
    source = read_topic(broker.bootstrap, encrypted.topic)
    target = read_topic(broker.bootstrap, f"{prefix}.{encrypted.topic}")
    assert sum(map(len, source.values())) == 2600
    assert_restored(source, target)
    stand = positions(broker.bootstrap, encrypted.group)
    assert stand[f"{prefix}.{encrypted.topic}", 0] == Position(700, f"{MARKER}\0")
    assert stand[f"{prefix}.{encrypted.topic}", 1] == Position(1000, "\0")
    state = [key for key in encrypted.archive.objects() if key.startswith(layout.RESTORES)]
    assert layout.restore_key(prefix, layout.REPORT) in state
    assert all(encrypted.archive.store.get(key).startswith(b"KBCRYPT\x02") for key in state)


@pytest.mark.parametrize("command", ["list", "info", "restore", "backup"])
def test_without_the_key_nothing_begins(encrypted: Encrypted, kbackup: Kbackup, command: str) -> None:
    before = encrypted.archive.objects()
    asked = [command, "--archive", encrypted.archive.url]
    assert kbackup(*asked).code == 12
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, generate_key())
        outcome = kbackup(*asked, "--encryption-key", f"env:{KEY}")
    assert (outcome.code, outcome.document["error"]["type"]) == (12, "WrongKeyError")
    now = encrypted.archive.objects()
    assert now.keys() == before.keys()
    assert {key for key in now if now[key] != before[key]} <= {layout.LOCK}


def test_damage_names_the_file(encrypted: Encrypted, spark: SparkSession) -> None:
    keys = [k for k in encrypted.archive.objects() if k.startswith(layout.TOPICS) and "_records" in k]
    victim, other = keys[0], keys[1]
    whole = encrypted.archive.store.get(victim)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    try:
        for damaged in (bytes(flipped), encrypted.archive.store.get(other), whole[:-1000]):
            encrypted.archive.store.put(victim, damaged)
            assert {finding.file for finding in verified(encrypted, spark).findings} == {victim}
    finally:
        encrypted.archive.store.put(victim, whole)
    assert verified(encrypted, spark).findings == ()


def test_spark_rewrites_an_encrypted_archive_without_the_key(
    new_archive: Callable[[], Archive], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have no key: they get the data keys, and make none."""
    monkeypatch.setattr(spread, "_SPARK_FROM", 0)
    inner = new_archive().store
    store = CryptStore(inner, Keyring(inner, f"env:{KEY}"), layout.key_class)
    history = History(store, configs={"a": {"cleanup.policy": "compact"}}, key=lambda offset: b"%d" % (offset % 7))
    for number in range(1, 5):
        history.run(number, {"a": 9, "b": 9})
    expired(store, last=2)
    key_files = [entry.key for entry in inner.list(layout.KEYS)]
    # As a command that opens the archive anew: it has written nothing by then.
    opened = CryptStore(inner, Keyring(inner, f"env:{KEY}"), layout.key_class)
    rewriting = Rewriting(MergeSizes(10_000, 100_000), compact=True, spark=lambda: spark)
    assert rewrite(opened, rewriting, 60, timedelta(days=1), Silent(), confirm=True).superseded > 0
    erasure = Erasure(Selection.of(("/.*/",), ()), KeyMatch([b"3"]))
    assert erase(opened, erasure, 60, Silent(), confirm=True, spark=lambda: spark).records > 0
    assert verify(opened, "all", False, lambda: spark, Silent()).findings == ()
    assert len([*inner.list(layout.KEYS)]) <= len(key_files) + 1, "one new data key for this process"
