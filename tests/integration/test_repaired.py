"""Archives that were repaired or adopted, on a real broker and a real S3 server: backups go on, and all comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.integration.backed_up import commit, produce
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import assert_restored, positions, read_topic


def lose(store: Store, *prefixes: str) -> None:
    assert store.delete([entry.key for entry in store.list() if entry.key.startswith(prefixes)]) == []


def whole(kbackup: Kbackup, archive: Archive) -> bool:
    outcome = kbackup("verify", archive.url)
    assert outcome.document["findings"] == []
    return outcome.code == 0


def check_restored(broker: Broker, kbackup: Kbackup, archive: Archive, topic: str, name: str, group: str) -> None:
    kbackup.restore(archive, "-t", topic, "--map", f"{topic}={name}", "--restore-id", name)
    assert_restored(read_topic(broker.bootstrap, topic), read_topic(broker.bootstrap, name))
    stood = positions(broker.bootstrap, group)
    assert stood[name, 0].offset == stood[topic, 0].offset


def test_restore_points_that_were_lost(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest first, then everything but the topics' folders; compressed segments, and tasks on Spark."""
    monkeypatch.setattr("kbackup.jobs.repair.HERE_BYTES", 0)
    only = ["-t", topic_name, "-g", topic_name, "--compression", "zstd"]
    broker.create_topic(topic_name, partitions=2)
    produce(broker, topic_name, 0, range(100))
    commit(broker, topic_name, topic_name, {0: 40})
    kbackup.backup(archive, *only)
    produce(broker, topic_name, 1, range(30))
    kbackup.backup(archive, *only)
    manifest = next(e.key for e in archive.store.list(f"{layout.POINTS}0000000001-") if "manifest" in e.key)
    lose(archive.store, manifest, f"topics/{topic_name}/index_")
    assert kbackup("info", "--archive", archive.url, "--restore-point", "1").code == 13
    repaired = kbackup("repair", archive.url, "--confirm")
    assert (repaired.code, repaired.document["new_point"], repaired.document["lost"]) == (3, None, [])
    assert whole(kbackup, archive)
    produce(broker, topic_name, 0, range(100, 120))
    went_on = kbackup.backup(archive, *only)
    assert (went_on["restore_point"], went_on["parent"], went_on["totals"]["records"]) == (3, 2, 20)
    assert went_on["losses"] == []
    check_restored(broker, kbackup, archive, topic_name, f"{topic_name}-a", topic_name)

    lose(archive.store, layout.ARCHIVE, layout.CATALOG, layout.TABLES, layout.POINTS, layout.RESTORES)
    repaired = kbackup("repair", archive.url, "--confirm")
    assert (repaired.code, repaired.document["new_point"], repaired.document["records"]) == (3, 1, 150)
    assert whole(kbackup, archive)
    produce(broker, topic_name, 1, range(30, 35))
    refused = kbackup("backup", "--archive", archive.url, *only)
    assert (refused.code, topic_name in refused.err, "--adopt-topics" in refused.err) == (1, True, True)
    went_on = kbackup.backup(archive, *only, "--adopt-topics")
    assert (went_on["parent"], went_on["totals"]["records"], went_on["losses"]) == (1, 5, [])
    assert kbackup.backup(archive, *only)["totals"]["records"] == 0, "its id is known now"
    check_restored(broker, kbackup, archive, topic_name, f"{topic_name}-b", topic_name)


def test_lost_segments_cost_no_restore_point(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    """They are losses; a restore says so, and a backup goes on at the end of the archive."""
    broker.create_topic(topic_name)
    for n in range(3):
        produce(broker, topic_name, 0, range(n * 10, n * 10 + 10))
        kbackup.backup(archive, "-t", topic_name)
    folder = f"topics/{topic_name}/"
    keys = sorted(e.key for e in archive.store.list(folder) if "_records" in e.key)
    assert len(keys) == 3
    for key in keys[1:]:
        data = archive.store.get(key)
        archive.store.put(key, data[:-3])
    report = kbackup("repair", archive.url, "--confirm")
    assert (report.code, report.document["lost"], len(report.document["losses"])) == (3, [], 2)
    produce(broker, topic_name, 0, range(30, 40))
    went_on = kbackup.backup(archive, "-t", topic_name)
    assert (went_on["totals"]["records"], went_on["losses"]) == (10, [])
    assert whole(kbackup, archive)
    only = ("-t", topic_name, "--map", f"{topic_name}={topic_name}-c", "--restore-id", f"{topic_name}-c")
    kbackup.restore(archive, *only, "--strict", code=1)
    restored = kbackup.restore(archive, *only, code=3)
    assert (restored["records"], len(restored["missing"])) == (20, 2)
    values = [[r.value for r in read_topic(broker.bootstrap, name)[0]] for name in (topic_name, f"{topic_name}-c")]
    assert values[1] == [*values[0][:10], *values[0][30:]]


def test_backups_go_on_in_an_adopted_folder_of_the_java_tool(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    """A folder as the Java tool has it, made of what a backup wrote in the same format."""
    broker.create_topic(topic_name, partitions=3)
    produce(broker, topic_name, 0, range(100))
    produce(broker, topic_name, 2, range(7))
    commit(broker, topic_name, topic_name, {0: 40, 2: 7})
    kbackup.backup(archive, "-t", topic_name, "-g", topic_name, "--compression", "none")
    folder = FileStore(tmp_path / "java")
    for entry in archive.store.list(layout.TOPICS):
        folder.put(entry.key.removeprefix(layout.TOPICS), archive.store.get(entry.key))
    java = Archive(f"file://{tmp_path / 'java'}", folder)
    produce(broker, topic_name, 0, range(100, 110))
    adopted = kbackup("adopt", java.url, "--confirm")
    assert (adopted.code, adopted.document["records"], adopted.document["losses"]) == (0, 107, [])
    assert whole(kbackup, java)
    only = ["-t", topic_name, "-g", topic_name]
    assert kbackup("backup", "--archive", java.url, *only).code == 1
    went_on = kbackup.backup(java, *only, "--adopt-topics")
    assert (went_on["totals"]["records"], went_on["losses"]) == (10, [])
    shown: Any = kbackup("info", topic_name, "--archive", java.url).document["topic"]
    assert [p["end"] for p in shown["partitions"]] == [110, 0, 7]
    check_restored(broker, kbackup, java, topic_name, f"{topic_name}-back", topic_name)
