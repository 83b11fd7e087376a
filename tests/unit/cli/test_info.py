"""`list` and `info` on archives that are at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points, lose_segments
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing
from kbackup.metadata.entities import ScramUser, not_carried_entry
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from kbackup.util.times import human_time
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import LOSS, T0, commit_point, make_archive
from tests.support.printed import Kbackup, loaded_modules


def test_list_shows_a_row_per_restore_point(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("list", root)
    first, second = printed.table("NUMBER")
    assert [*first][-2:] == ["GROUPS", "LOSSES"], "no warnings, no damage, no pins, no labels"
    assert first["AGE"].endswith("d ago")
    assert first | {"AGE": ""} == {
        **{"NUMBER": "1", "COMMITTED AT": "2026-01-01T00:00:00.000Z", "AGE": "", "TOPICS": "2", "PARTITIONS": "4"},
        **{"NEW RECORDS": "42", "BYTES": "5.4 KiB", "STORED": "3.5 KiB", "GROUPS": "1", "LOSSES": "0"},
    }
    assert second | {"AGE": ""} == {
        **{"NUMBER": "2", "COMMITTED AT": "2026-01-02T00:00:00.000Z", "AGE": "", "TOPICS": "1", "PARTITIONS": "3"},
        **{"NEW RECORDS": "24", "BYTES": "3.2 KiB", "STORED": "3.2 KiB", "GROUPS": "2", "LOSSES": "1"},
    }
    assert printed.err == ""
    document = kbackup("list", root, "--json").json
    assert [(p["number"], p["losses"]) for p in document["restore_points"]] == [(1, 0), (2, 1)]
    assert (document["held_by"], document["let_go"]) == (None, 0)


def test_a_run_that_committed_nothing_and_the_lease(mine: str, kbackup: Kbackup) -> None:
    store = open_store(mine)
    with HeldLease(store, "kbackup backup", 60) as lease:
        begin_writing(store, lease, "backup")
        assert "locked by kbackup backup on " in kbackup("list", mine).err
        assert kbackup("list", mine, "--json").json["held_by"]["command"] == "kbackup backup"
    document = kbackup("list", mine, "--json").json
    assert document["held_by"] is None
    assert [p["number"] for p in document["restore_points"]] == [1, 2]


def test_restore_points_that_were_let_go(mine: str, kbackup: Kbackup) -> None:
    store = open_store(mine)
    commit(store, open_archive(store).committed, lambda state: expire_points(state, [1]), Author("expire", "", "test"))
    assert kbackup("list", mine).err == "1 restore point expired or lost; see 'kbackup log'\n"
    document = kbackup("list", mine, "--json").json
    assert ([p["number"] for p in document["restore_points"]], document["let_go"]) == ([2], 1)
    shown = kbackup("info", "-a", mine).out
    assert "expired or lost 1 restore point" in " ".join(shown.replace(":", "").split())
    err = kbackup("info", "-a", mine, "--restore-point", "1", code=2).err
    assert "restore point 1 expired or was lost" in err
    assert "the nearest is 2" in err


def test_the_restore_point_at_which_the_cluster_changed_is_marked(mine: str, kbackup: Kbackup) -> None:
    assert "NEW CLUSTER" not in kbackup("list", mine).out
    archive = open_archive(open_store(mine))
    for number, cluster in ((3, "rebuilt"), (4, ""), (5, "rebuilt")):
        commit_point(archive, number, cluster_id=cluster)
    marks = [row["NEW CLUSTER"] for row in kbackup("list", mine).table("NUMBER")]
    assert marks == ["-", "-", "rebuilt", "-", "-"]
    points = kbackup("list", mine, "--json").json["restore_points"]
    assert [point["number"] for point in points if point["cluster_changed"]] == [3]
    newest = kbackup("info", "-a", mine, "--json").json["newest"]
    assert (newest["cluster_id"], newest["cluster_changed"]) == ("rebuilt", False)


def test_pins_labels_and_damage(mine: str, kbackup: Kbackup) -> None:
    """Columns that are there when something stands in them."""
    archive = open_archive(open_store(mine))
    assert not {"damaged", "kept", "labels"} & {*kbackup("list", mine).out.lower().split()}
    lost = {archive.added(1, 2)[0].key: "the object is missing"}
    commit(open_store(mine), archive.committed, lambda state: lose_segments(state, lost), Author("repair", "", "test"))
    kbackup("keep", "1", "-a", mine)
    kbackup("label", "2", "before-migration", "-a", mine)
    kbackup("label", "2", "after-audit", "-a", mine)
    first, second = kbackup("list", mine).table("NUMBER")
    assert (first["DAMAGED"], first["KEPT"], first["LABELS"]) == ("-", "pinned", "-")
    assert (second["DAMAGED"], second["KEPT"], second["LABELS"]) == ("1", "-", "after-audit, before-migration")
    points = kbackup("list", mine, "--json").json["restore_points"]
    assert [(p["damaged"], p["pinned"], p["labels"]) for p in points] == [
        (0, True, []),
        (1, False, ["after-audit", "before-migration"]),
    ]
    assert "the object is missing" in kbackup("info", "orders", "-a", mine).err
    assert kbackup("info", "-a", mine, "--restore-point", "1", "--json").json["losses"] == []
    labelled = kbackup("list", mine, "--label", "after-audit", "--json").json["restore_points"]
    assert [p["number"] for p in labelled] == [2]


@pytest.mark.parametrize("label", ["before", "2", "latest"])
def test_a_label_that_nothing_has(root: str, label: str, kbackup: Kbackup) -> None:
    assert f"no restore point has label '{label}'" in kbackup("list", root, "--label", label, code=2).err


def test_info_summarizes_the_archive(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("info", "-a", root)
    for text in ("restore point 2 of 2026-01-02", f"{human_time(T0)} to {human_time(T0 + 39_000)}", "billing, late"):
        assert text in printed.out
    assert printed.err == f"warning: loss: {LOSS}\n"
    document = kbackup("info", "-a", root, "--json").json
    states = {t["name"]: (t["state"], t["as_of"], t["sums"]["records"]) for t in document["topics"]}
    assert states == {"clicks": ("deleted", 1, 20), "orders": ("present", 2, 46)}
    sums = document["sums"]
    assert sums["records"] == 66
    assert sums["gaps"] == 5 + 1 + 1, "the loss, a hole, and one at the very end"
    assert sums["stored_bytes"] < sums["bytes"]
    assert (sums["min_timestamp"], sums["max_timestamp"]) == (T0, T0 + 39_000)
    assert document["oldest"]["number"] == 1
    earlier = kbackup("info", "-a", root, "--restore-point", "1", "--json").json
    assert (earlier["sums"]["records"], earlier["losses"], earlier["newest"]["number"]) == (42, [], 2)


def test_info_counts_settings_and_shows_no_credential(tmp_path: Path, kbackup: Kbackup) -> None:
    (tmp_path / "key").write_text(generate_key())
    key = f"file:{tmp_path / 'key'}"
    store = open_store(str(tmp_path / "archive"), key=key, key_class=layout.key_class)
    archive = make_archive(store)
    user = ScramUser(user="a", mechanism="SCRAM-SHA-256", iterations=4096, stored_key="not-to-be-seen")
    left_out = not_carried_entry("delegation_tokens", "not supported", "so it is")
    settings = {"acls": (), "scram_users": (user,), "not_carried": (left_out,)}
    commit_point(archive, 3, settings=settings)
    assert archive.metadata(3).scram_users == (user,), "only an encrypted archive has it"
    info = ["info", "-a", store.url, "--encryption-key", key]
    document = kbackup(*info, "--json").json
    assert document["settings"] == {"acls": 0, "scram_users": 1}
    assert document["not_carried"] == [
        {"part": "delegation_tokens", "what": "delegation tokens", "reason": "not supported", "why": "so it is"}
    ]
    assert ["settings:", "SCRAM users 1"] in [line.split(maxsplit=1) for line in kbackup(*info).lines]
    assert "not-to-be-seen" not in json.dumps(document)


def test_info_shows_a_topic_with_its_ranges_groups_and_losses(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("info", "orders", "-a", root)
    assert "retention.ms=-1" in printed.out
    assert printed.err == f"warning: loss: {LOSS}\n"
    topic = kbackup("info", "orders", "-a", root, "--json").json["topic"]
    ranges = [(p["start"], p["end"], p["sums"]["records"]) for p in topic["partitions"]]
    assert ranges == [(0, 41, 34), (0, 12, 12), (0, 0, 0)]
    assert [(g["group"], g["partition"], g["offset"], g["lag"]) for g in topic["groups"]] == [
        ("billing", 0, 17, 24),
        ("billing", 1, 12, 0),
        ("late", 0, 41, 0),
    ]


def test_a_folder_of_the_java_tool(kbackup: Kbackup) -> None:
    folder = str(JAVA / "archive")
    document = kbackup("info", "-a", folder, "--json").json
    assert document["sums"]["records"] == 385
    assert (document["restore_point"], document["oldest"]) == (None, None)
    assert "written by: the Java tool" in " ".join(kbackup("info", "-a", folder).out.split())
    assert "not known without reading the records" in kbackup("info", "orders.v1", "-a", folder).out
    assert "hint: run 'kbackup info' to show its content" in kbackup("list", folder, code=10).err


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
def test_an_archive_topic_or_restore_point_that_is_not_there_is_refused_with_a_hint(
    root: str, tmp_path: Path, args: list[str], code: int, hint: str, kbackup: Kbackup
) -> None:
    filled = [arg.format(root=root, nothing=tmp_path / "nothing") for arg in args]
    assert f"hint: {hint}" in kbackup(*filled, code=code).err


def test_info_names_a_damaged_table(mine: str, kbackup: Kbackup) -> None:
    ref = open_archive(open_store(mine)).committed.catalog
    assert ref is not None
    (Path(mine) / ref.tables.segments[0].key).write_bytes(b"")
    err = kbackup("info", "-a", mine, code=13).err
    assert f"file {ref.tables.segments[0].key} is not what its catalog says" in err
    assert "hint: " in err
    (Path(mine) / layout.catalog_key(ref.number)).unlink()
    assert f"file {layout.catalog_key(ref.number)} is missing" in kbackup("list", mine, code=13).err


@pytest.mark.parametrize("args", [["list"], ["info", "-a"], ["log"]])
@pytest.mark.exhaustive(keep=1)
def test_neither_spark_nor_kafka_is_loaded(root: str, args: list[str]) -> None:
    assert not {"pyspark", "confluent_kafka", "boto3"} & loaded_modules(*args, root)


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
def test_times_outside_the_calendar_are_shown_as_milliseconds(ms: int | None, text: str) -> None:
    assert human_time(ms) == text


def test_info_shows_the_content_of_a_moment(root: str, kbackup: Kbackup) -> None:
    """Clicks, deleted since, is back; of orders also what a later run found; groups are as of the first run."""
    at = ("-a", root, "--to-time", "2026-01-01T12:00:00Z", "--tz", "UTC")
    printed = kbackup("info", *at)
    assert "records up to 2026-01-01T12:00:00.000Z, included" in printed.err
    assert "groups are as of restore point 1, captured at 2026-01-01T00:00:00.000Z" in printed.err
    assert [row["TOPIC"] for row in printed.table("TOPIC")] == ["clicks", "orders"]
    whole = kbackup("info", *at, "--json").json
    assert {t["name"]: (t["as_of"], t["sums"]["records"], t["sums"]["gaps"]) for t in whole["topics"]} == {
        "clicks": (1, 20, None),
        "orders": (1, 46, None),
    }
    assert whole["choice"]["groups_as_of"] == 1
    topic = kbackup("info", "clicks", "-a", root, "--to-time", "2026-01-02T12:00:00Z", "--json").json
    assert (topic["topic"]["state"], topic["choice"]["as_of"]) == ("deleted", 2)
    refused = kbackup("info", "-a", root, "--to-time", "noon", "--json", code=2).json
    assert refused["error"]["message"].startswith("--to-time noon is not a time: the words are 'now', ")
