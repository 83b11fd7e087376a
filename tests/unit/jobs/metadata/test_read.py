"""Reading every source that is set, for a backup and for an archive of metadata alone."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from kbackup.errors import CorruptError, MismatchError, UnreachableError
from kbackup.jobs import metadata
from kbackup.jobs.metadata import Asked, merge, read_all, sources_beside, with_sources
from kbackup.kafka.metadata_log.codec import record
from kbackup.metadata.entities import Reading
from kbackup.metadata.sources import Sources
from tests.support.metadata_entities import by_brokers, by_log, by_zookeeper, user
from tests.support.metadata_records import write_segment

NONE = Sources(kafka={})


def down() -> NoReturn:
    raise UnreachableError("ZooKeeper at zk:2181 did not answer", "is it running?")


def beside(monkeypatch: pytest.MonkeyPatch, *readings: Reading) -> None:
    asked = [Asked(r.source, r.source, lambda r=r: r) for r in readings]  # type: ignore[misc]  # bound now
    monkeypatch.setattr(metadata, "sources_beside", lambda sources: asked)


def test_sources_that_are_asked() -> None:
    assert list(sources_beside(NONE)) == []
    properties = {"bootstrap.servers": "b:1", "zookeeper.connect": "zk:1/kafka", "metadata.log.dir": "/kraft"}
    assert [(asked.source, asked.name) for asked in sources_beside(Sources.of(properties))] == [
        ("zookeeper", "ZooKeeper at zk:1/kafka"),
        ("controller log", "the metadata log in /kraft"),
    ]


def test_a_backup_takes_what_other_sources_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch, by_zookeeper(), by_log())
    merged = with_sources(by_brokers(), 3, NONE)
    assert merged.metadata.scram_users == (user(),)
    assert merged.metadata.brokers == 3
    assert merged.warnings == ()


def test_a_backup_goes_on_without_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata, "sources_beside", lambda sources: [Asked("zookeeper", "ZooKeeper at zk:2181", down)]
    )
    merged = with_sources(by_brokers(), 3, NONE)
    assert merged.metadata == merge([by_brokers()], merged.metadata.captured_at, 3).metadata
    assert merged.warnings == (
        "ZooKeeper at zk:2181 is not read: ZooKeeper at zk:2181 did not answer; is it running?",
    )


def test_a_corrupt_log_is_damage_of_a_backup_and_ends_an_archive_of_metadata(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [record("NoOpRecord")])
    path.write_bytes(path.read_bytes()[:-1])
    sources = Sources.of({"metadata.log.dir": str(tmp_path)})
    merged = with_sources(by_brokers(), 3, sources)
    assert merged.damage == (f"the metadata log in {tmp_path}",)
    assert "byte 0: the file ends within a batch" in merged.warnings[0]
    with pytest.raises(CorruptError, match="byte 0: the file ends within a batch"):
        read_all(sources)


def test_a_source_of_another_cluster_ends_a_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch, by_zookeeper(cluster_id="d"))
    with pytest.raises(MismatchError):
        with_sources(by_brokers(), 3, NONE)


def test_an_archive_needs_every_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "sources_beside", lambda sources: [Asked("zookeeper", "", down)])
    with pytest.raises(UnreachableError):
        read_all(NONE)


def test_without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    beside(monkeypatch, by_zookeeper())
    merged = read_all(NONE)
    assert set(merged.metadata.sources.values()) == {"zookeeper"}
