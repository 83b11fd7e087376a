"""`kbackup diff` on an archive that is there, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbackup.cli import main
from kbackup.store import open_store
from tests.support.archives import make_archive

Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = open_store(str(tmp_path_factory.mktemp("archive")))
    make_archive(store)
    return store.url


def told(capsys: Said, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["diff", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_two_restore_points(archive: str, capsys: Said) -> None:
    document = told(capsys, "1", "latest", "-a", archive)
    assert (document["a"], document["b"], document["same"]) == ("restore point 1", "restore point 2", False)
    assert [(t["topic"], t["change"]) for t in document["topics"]] == [("clicks", "gone")]
    assert document["offsets"] == [{"topic": "orders", "partition": 0, "start": [0, 0], "end": [10, 41], "added": 31}]
    assert [(g["group"], g["change"]) for g in document["groups"]] == [("billing", "changed"), ("late", "appeared")]
    assert document["groups"][0]["moved"] == [
        {"topic": "clicks", "partition": 0, "before": 5, "after": None},
        {"topic": "orders", "partition": 0, "before": 4, "after": 17},
    ]
    older = "an older version of kbackup did not capture them"
    assert document["not_compared"]["ACLs"] == f"restore point 2: {older}"


def test_selection(archive: str, capsys: Said) -> None:
    found = told(capsys, "1", "2", "-a", archive, "--topic", "clicks", "--exclude-group", "/.*/")
    assert [t["topic"] for t in found["topics"]] == ["clicks"]
    assert (found["offsets"], found["groups"]) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("1", "2"), 0), (("1", "2", "--exit-code"), 3), (("2", "latest", "--exit-code"), 0), (("2", "2"), 0)],
)
def test_exit_codes(archive: str, capsys: Said, arguments: tuple[str, ...], code: int) -> None:
    assert main(["diff", *arguments, "-a", archive]) == code
    said = capsys.readouterr()
    assert ("there are no differences" in said.out) == (arguments[:2] != ("1", "2"))
    assert "not compared: ACLs" in said.err


def test_a_selection_matches_on_either_side(archive: str, capsys: Said) -> None:
    """Topic clicks is deleted in restore point 2, group late is new there."""
    assert told(capsys, "2", "1", "-a", archive, "-t", "clicks", "-g", "late")["topics"][0]["change"] == "appeared"


def test_tables(archive: str, capsys: Said) -> None:
    assert main(["diff", "1", "2", "-a", archive]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("orders")] == [
        ["orders", "0", "0", "10", "->", "41", "31"]
    ]
    assert lines[-1] == "different: 1 topics, 1 partitions (31 new offsets), 2 groups"


@pytest.mark.parametrize(
    ("arguments", "code", "answer"),
    [
        (("1", "yesterday"), 2, "there is no restore point yesterday"),
        (("1", "3"), 2, "there is no restore point 3"),
        (("1", "source"), 2, "no source cluster is named"),
        (("1", "2", "-t", "odrers"), 2, "there is no topic odrers in restore point 1 or restore point 2"),
        (("1", "2", "-t", "/x.*/"), 2, "no topic in restore point 1 or restore point 2 matches /x.*/"),
        (("1", "2", "-g", "lat"), 2, "there is no group lat in restore point 1 or restore point 2"),
    ],
)
def test_names_that_mean_nothing(
    archive: str, capsys: Said, arguments: tuple[str, ...], code: int, answer: str
) -> None:
    assert told(capsys, *arguments, "-a", archive, code=code)["error"]["message"].startswith(answer)


def test_an_archive_is_opened_only_for_restore_points(capsys: Said, tmp_path: Path) -> None:
    found = told(capsys, "source", "target", "-a", str(tmp_path / "nowhere"), code=2)
    assert "no source cluster is named" in found["error"]["message"]
