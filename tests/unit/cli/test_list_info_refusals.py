"""The commands `list` and `info`: refusals, damage, imports and moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from kbackup.util.times import human_time
from tests.support.archives import make_archive
from tests.support.loaded_modules import loaded_modules

Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return root


def told(capsys: Said, *args: str) -> Any:
    assert cli.main([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "code", "hint"),
    [
        (["info", "-a", "{nothing}"], 10, "check the address"),
        (["list", "{nothing}"], 10, "check the address"),
        (["info", "order", "-a", "{root}"], 2, "did you mean orders?"),
        (["info", "xxxxxxxx", "-a", "{root}"], 2, "run 'kbackup info' to list them"),
        (["info", "--restore-point", "7", "-a", "{root}"], 2, "select another one: the newest is 2"),
        (["info"], 2, "give --archive"),
    ],
)
def test_refusals(root: Path, tmp_path: Path, args: list[str], code: int, hint: str, capsys: Said) -> None:
    filled = [arg.format(root=root, nothing=tmp_path / "nothing") for arg in args]
    assert cli.main(filled) == code
    assert f"hint: {hint}" in capsys.readouterr().err


def test_damage_is_named(tmp_path: Path, capsys: Said) -> None:
    root = tmp_path / "archive"
    make_archive(open_store(str(root)))
    ref = open_archive(open_store(str(root))).committed.catalog
    assert ref is not None
    table = ref.tables.segments[0].key
    (root / table).write_bytes(b"")
    assert cli.main(["info", "-a", str(root)]) == 13
    err = capsys.readouterr().err
    assert f"file {table} is not what its catalog says" in err
    assert "hint: " in err


def test_a_catalog_that_is_gone_is_named(tmp_path: Path, capsys: Said) -> None:
    root = tmp_path / "archive"
    newest = make_archive(open_store(str(root))).state.number
    (root / layout.catalog_key(newest)).unlink()
    assert cli.main(["list", str(root)]) == 13
    assert f"file {layout.catalog_key(newest)} is missing" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["list"], ["info", "-a"], ["log"]])
@pytest.mark.exhaustive(keep=1)
def test_neither_spark_nor_kafka_is_loaded(root: Path, args: list[str]) -> None:
    assert not {"pyspark", "confluent_kafka", "boto3"} & loaded_modules(*args, str(root))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01 00:00:00Z"),
        (-1, "1969-12-31 23:59:59Z"),
        (None, "-"),
        (2**62, f"{2**62} ms"),
        (-(2**62), f"{-(2**62)} ms"),
    ],
)
def test_times(ms: int | None, text: str) -> None:
    assert human_time(ms) == text


def test_info_shows_the_content_of_a_moment(root: Path, capsys: Said) -> None:
    """Clicks, deleted since, is back; of orders also what a later run found; groups are as of the first run."""
    assert cli.main(["info", "-a", str(root), "--to-time", "2026-01-01T12:00:00Z"]) == 0
    out, err = capsys.readouterr()
    assert "records up to 2026-01-01T12:00:00.000Z, included" in err
    assert "groups are as of restore point 1, captured at 2026-01-01T00:00:00.000Z" in err
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["clicks", "orders"]
    whole = told(capsys, "info", "-a", str(root), "--to-time", "2026-01-01T12:00:00Z")
    assert {t["name"]: (t["as_of"], t["sums"]["records"], t["sums"]["gaps"]) for t in whole["topics"]} == {
        "clicks": (1, 20, None),
        "orders": (1, 46, None),
    }
    assert whole["choice"]["groups_as_of"] == 1
    topic = told(capsys, "info", "clicks", "-a", str(root), "--to-time", "2026-01-02T12:00:00Z")
    assert (topic["topic"]["state"], topic["choice"]["as_of"]) == ("deleted", 2)
    assert cli.main(["info", "-a", str(root), "--to-time", "noon", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "--to-time noon is not a time"
