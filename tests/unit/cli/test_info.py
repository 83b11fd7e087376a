"""`list` and `info` on archives that are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points, lose_segments
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Manifest, Metadata
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import begin_writing
from kbackup.metadata.entities import ScramUser, not_carried_entry
from kbackup.store import open_store
from kbackup.util.times import human_time
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import LOSS, T0, make_archive
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


def test_restore_points(root: Path, capsys: Said) -> None:
    assert cli.main(["list", str(root)]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][-2:] == ["GROUPS", "LOSSES"], "no warnings, no damage, no pins, no labels"
    assert lines[1][:2] == ["1", "2026-01-01T00:00:00.000Z"]
    assert lines[1][3:7] == ["ago", "2", "4", "42"]
    assert lines[2][:2] == ["2", "2026-01-02T00:00:00.000Z"]
    assert lines[2][3:7] == ["ago", "1", "3", "24"]
    assert [line[-2:] for line in lines[1:]] == [["1", "0"], ["2", "1"]]
    assert err == ""
    document = told(capsys, "list", str(root))
    assert [p["number"] for p in document["restore_points"]] == [1, 2]
    assert document["restore_points"][1]["losses"] == 1
    assert (document["held_by"], document["let_go"]) == (None, 0)


def test_a_run_that_committed_nothing_and_the_lease(tmp_path: Path, capsys: Said) -> None:
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    with HeldLease(store, "kbackup backup", 60) as lease:
        begin_writing(store, lease, "backup")
        assert cli.main(["list", store.url]) == 0
        assert "locked by kbackup backup on " in capsys.readouterr().err
        assert told(capsys, "list", store.url)["held_by"]["command"] == "kbackup backup"
    document = told(capsys, "list", store.url)
    assert document["held_by"] is None
    assert [p["number"] for p in document["restore_points"]] == [1, 2]


def test_restore_points_that_were_let_go(tmp_path: Path, capsys: Said) -> None:
    store = open_store(str(tmp_path / "archive"))
    base = make_archive(store).committed
    commit(store, base, lambda state: expire_points(state, [1]), Author("expire", "", "test"))
    assert cli.main(["list", store.url]) == 0
    assert capsys.readouterr().err == "1 restore point expired or lost; see 'kbackup log'\n"
    document = told(capsys, "list", store.url)
    assert ([p["number"] for p in document["restore_points"]], document["let_go"]) == ([2], 1)
    assert cli.main(["info", "-a", store.url]) == 0
    assert "expired or lost 1 restore point" in " ".join(capsys.readouterr().out.replace(":", "").split())
    assert cli.main(["info", "-a", store.url, "--restore-point", "1"]) == 2
    err = capsys.readouterr().err
    assert "restore point 1 was let go" in err
    assert "the nearest is 2" in err


def test_pins_labels_and_damage(tmp_path: Path, capsys: Said) -> None:
    """Columns that are there when something stands in them."""
    store = open_store(str(tmp_path / "archive"))
    archive = make_archive(store)
    assert cli.main(["list", store.url]) == 0
    assert not {"damaged", "kept", "labels"} & {*capsys.readouterr().out.lower().split()}
    segment = archive.added(1, 2)[0]
    lost = {segment.key: "the object is missing"}
    commit(store, archive.committed, lambda state: lose_segments(state, lost), Author("repair", "", "test"))
    assert cli.main(["keep", "1", "-a", store.url]) == 0
    assert cli.main(["label", "2", "before-migration", "-a", store.url]) == 0
    assert cli.main(["label", "2", "after-audit", "-a", store.url]) == 0
    capsys.readouterr()
    assert cli.main(["list", store.url]) == 0
    head, first, second = (line.split() for line in capsys.readouterr().out.lower().splitlines())
    assert head[-3:] == ["damaged", "kept", "labels"]
    assert first[-3:] == ["-", "pinned", "-"]
    assert second[-4:] == ["1", "-", "after-audit,", "before-migration"]
    points = told(capsys, "list", store.url)["restore_points"]
    assert [(p["damaged"], p["pinned"], p["labels"]) for p in points] == [
        (0, True, []),
        (1, False, ["after-audit", "before-migration"]),
    ]
    assert cli.main(["info", "orders", "-a", store.url]) == 0
    assert "the object is missing" in capsys.readouterr().err
    assert told(capsys, "info", "-a", store.url, "--restore-point", "1")["losses"] == []
    labelled = told(capsys, "list", store.url, "--label", "after-audit")["restore_points"]
    assert [p["number"] for p in labelled] == [2]


@pytest.mark.parametrize("label", ["before", "2", "latest"])
def test_a_label_that_nothing_has(root: Path, label: str, capsys: Said) -> None:
    assert cli.main(["list", str(root), "--label", label]) == 2
    assert f"no restore point has label '{label}'" in capsys.readouterr().err


def test_info_summarizes_the_archive(root: Path, capsys: Said) -> None:
    assert cli.main(["info", "-a", str(root)]) == 0
    out, err = capsys.readouterr()
    assert "restore point 2 of 2026-01-02" in out
    assert f"{human_time(T0)} to {human_time(T0 + 39_000)}" in out
    assert "billing, late" in out
    assert err == f"warning: loss: {LOSS}\n"
    document = told(capsys, "info", "-a", str(root))
    states = {t["name"]: (t["state"], t["as_of"], t["sums"]["records"]) for t in document["topics"]}
    assert states == {"clicks": ("deleted", 1, 20), "orders": ("present", 2, 46)}
    sums = document["sums"]
    assert sums["records"] == 66
    assert sums["gaps"] == 5 + 1 + 1, "the loss, a hole, and one at the very end"
    assert sums["stored_bytes"] < sums["bytes"]
    assert (sums["min_timestamp"], sums["max_timestamp"]) == (T0, T0 + 39_000)
    assert document["oldest"]["number"] == 1


def test_settings_are_counted(root: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Archive.metadata

    def metadata(archive: Archive, point: Manifest | int) -> Metadata:
        user = ScramUser(user="a", mechanism="SCRAM-SHA-256", iterations=4096, stored_key="not-to-be-seen")
        left_out = not_carried_entry("delegation_tokens", "not supported", "so it is")
        return replace(stored(archive, point), acls=(), scram_users=(user,), not_carried=(left_out,))

    monkeypatch.setattr(Archive, "metadata", metadata)
    document = told(capsys, "info", "-a", str(root))
    assert document["settings"] == {"acls": 0, "scram_users": 1}
    assert document["not_carried"] == [
        {"part": "delegation_tokens", "what": "delegation tokens", "reason": "not supported", "why": "so it is"}
    ]
    assert cli.main(["info", "-a", str(root)]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["settings:", "SCRAM users 1"] in lines
    assert "not-to-be-seen" not in json.dumps(document)


def test_an_earlier_restore_point(root: Path, capsys: Said) -> None:
    document = told(capsys, "info", "-a", str(root), "--restore-point", "1")
    assert (document["sums"]["records"], document["losses"], document["newest"]["number"]) == (42, [], 2)


def test_one_topic(root: Path, capsys: Said) -> None:
    assert cli.main(["info", "orders", "-a", str(root)]) == 0
    out, err = capsys.readouterr()
    assert "retention.ms=-1" in out
    assert err == f"warning: loss: {LOSS}\n"
    topic = told(capsys, "info", "orders", "-a", str(root))["topic"]
    ranges = [(p["start"], p["end"], p["sums"]["records"]) for p in topic["partitions"]]
    assert ranges == [(0, 41, 34), (0, 12, 12), (0, 0, 0)]
    assert [(g["group"], g["partition"], g["offset"], g["lag"]) for g in topic["groups"]] == [
        ("billing", 0, 17, 24),
        ("billing", 1, 12, 0),
        ("late", 0, 41, 0),
    ]


def test_a_folder_of_the_java_tool(capsys: Said) -> None:
    folder = str(JAVA / "archive")
    document = told(capsys, "info", "-a", folder)
    assert document["sums"]["records"] == 385
    assert (document["restore_point"], document["oldest"]) == (None, None)
    assert cli.main(["info", "-a", folder]) == 0
    assert "written by: the Java tool" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["info", "orders.v1", "-a", folder]) == 0
    assert "not known without reading the records" in capsys.readouterr().out
    assert cli.main(["list", folder]) == 10
    assert "hint: run 'kbackup info' to show its content" in capsys.readouterr().err


# The commands `list` and `info`: refusals, damage, imports and moments.


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
