"""`kbackup mirror translate`: what it asks, and what it shows. The target is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.restores.flow_map import FlowMapPartName
from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.jobs.mirror import positions
from kbackup.jobs.mirror.apply.pending import Noted, PositionNote
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.kafka.admin import cluster as admin
from kbackup.kafka.mirror_records import Checkpoint
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.flow_maps import map_of

Said = pytest.CaptureFixture[str]

REMOTE = TopicPartition("A.orders", 0)
OFFSETS = [*range(10), 15, *range(17, 40)]
"""Of the archive's orders-0; the target has them in two transactions."""
PAIRS = [(source, n + (n >= 11)) for n, source in enumerate(OFFSETS)]
CHECKPOINTS = [
    Checkpoint("billing", REMOTE, 4, 4, ""),
    Checkpoint("late", REMOTE, 41, 30, ""),
    Checkpoint("billing", REMOTE, 17, 9, ""),
]


class Map:
    slots = 0

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap:
        return map_of(PAIRS if (remote, incarnation) == (REMOTE, 1) else [])


class Target:
    """A cluster with a topic of checkpoints, unless `empty`."""

    empty = False

    def __init__(self, properties: dict[str, str], role: str) -> None:
        assert properties["bootstrap.servers"] == "b:9092"
        self.connection = SimpleNamespace(properties=properties)

    def topics(self, names: Iterable[str]) -> dict[str, object]:
        return {} if self.empty else dict.fromkeys(names, object())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_archive(open_store(str(tmp_path / "A")))
    position = Noted(AppliedPosition(1, 40), PositionNote(1, FlowMapPartName(1, "a"), 2))
    monkeypatch.setattr(admin, "Cluster", Target)
    monkeypatch.setattr(positions, "read_positions", lambda *flow: {REMOTE: position})
    monkeypatch.setattr(positions, "open_map", lambda *flow: Map())
    monkeypatch.setattr(positions, "read_records", lambda *topic: iter(CHECKPOINTS))
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters = A, B\nA->B.enabled = true\nB.bootstrap.servers = b:9092\n"
        f"topics = orders\nkbackup.archive = {tmp_path}/{{source}}\n"
    )
    return path


def translate(capsys: Said, *arguments: object, code: int = 0) -> dict[str, Any]:
    assert cli.main(["mirror", "translate", *map(str, arguments), "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def offset(partition: int, committed: int, checkpoint: int | None, exact: int | None) -> dict[str, object]:
    return {
        "topic": "A.orders",
        "partition": partition,
        "committed": committed,
        "checkpoint": checkpoint,
        "exact": exact,
    }


def test_the_last_checkpoint_stands_beside_the_exact_answer(file: Path, capsys: Said) -> None:
    """Of a partition without applied records there is neither, and topics that the flow leaves out are not shown."""
    (told,) = translate(capsys, file, "billing")["flows"]
    assert (told["flow"], told["group"], told["restore_point"]) == ("A->B", "billing", 2)
    assert told["offsets"] == [offset(0, 17, 9, 12), offset(1, 12, None, None)]
    (told,) = translate(capsys, file, "late", "--flow", "A->B")["flows"]
    assert told["offsets"] == [offset(0, 41, 30, PAIRS[-1][1] + 1)]


def test_translation_is_printed_as_a_table(file: Path, capsys: Said) -> None:
    assert cli.main(["mirror", "translate", str(file), "billing"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("A.orders")]
    assert rows[0] == ["A.orders", "0", "17", "9", "12"]


def test_a_target_without_checkpoints(file: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "empty", True)
    (told,) = translate(capsys, file, "late")["flows"]
    assert told["offsets"] == [offset(0, 41, None, PAIRS[-1][1] + 1)]


def test_a_position_that_the_target_has_forgotten_is_told(
    file: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 1 was never applied: nothing is forgotten of it."""
    monkeypatch.setattr(positions, "read_positions", lambda *flow: {})
    assert cli.main(["mirror", "translate", str(file), "billing", "--json"]) == 0
    said = capsys.readouterr()
    (told,) = json.loads(said.out)["flows"]
    assert told["offsets"] == [offset(0, 17, 9, None), offset(1, 12, None, None)]
    assert told["forgotten"] == {"A.orders-0": "the target holds other records than the map says"}
    assert "A->B: no exact position for A.orders-0" in said.err


def test_an_archive_that_went_back_is_refused(
    file: Path, capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert translate(capsys, file, "billing")
    store = open_store(str(tmp_path / "A"))
    newest = max(layout.parse_catalog_key(entry.key) or 0 for entry in store.list(layout.CATALOG))
    store.delete([layout.catalog_key(newest), layout.LATEST, layout.DERIVED])
    error = translate(capsys, file, "billing", code=10)["error"]
    assert f"this machine has seen catalog {newest}" in error["message"]
    assert translate(capsys, file, "billing", "--accept-rollback")


def test_another_archive_is_refused(file: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBACKUP_ARCHIVE_ID", "0" * 32)
    assert "archive_id" in str(translate(capsys, file, "billing", code=10)["error"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["biling"], "knows no position of group biling"), (["late", "--flow", "A->X"], "no flow A->X")],
)
def test_unknown_names_are_refused(file: Path, capsys: Said, arguments: list[str], message: str) -> None:
    error = translate(capsys, file, *arguments, code=2)["error"]
    assert message in error["message"]
    assert error["hint"]
