"""`list` and `info` on what a real backup wrote to a real S3 server."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive.lease import HeldLease
from tests.integration.backed_up import T0, BackedUp
from tests.support.printed import loaded_modules

Said = pytest.CaptureFixture[str]


def told(made: BackedUp, capsys: Said, *args: str) -> Any:
    assert cli.main([*args, "--config", str(made.config), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_restore_points_and_a_topic_with_its_groups(made: BackedUp, capsys: Said) -> None:
    points = told(made, capsys, "list")["restore_points"]
    shown = [(p["number"], p["records"], p["topics"], p["partitions"]) for p in points]
    assert shown == [(1, 130, 1, 3), (2, 50, 1, 3)]
    with HeldLease(made.store, "kbackup backup", 60):
        assert told(made, capsys, "list")["held_by"]["command"] == "kbackup backup"
    topic = told(made, capsys, "info", made.topic)["topic"]
    ranges = [(p["start"], p["end"], p["sums"]["records"]) for p in topic["partitions"]]
    assert ranges == [(0, 150, 150), (0, 30, 30), (0, 0, 0)]
    groups = [(g["group"], g["partition"], g["offset"], g["lag"]) for g in topic["groups"]]
    assert groups == [(made.group, 0, 40, 110), (made.group, 1, 30, 0)]
    sums = topic["sums"]
    assert (sums["min_timestamp"], sums["max_timestamp"]) == (T0, T0 + 149_000)
    first = told(made, capsys, "info", made.topic, "--restore-point", "1")["topic"]
    assert [g["lag"] for g in first["groups"]] == [60, 0]
    there = sum(e.size for e in made.store.list("topics/") if "_records" in e.key)
    assert told(made, capsys, "info")["sums"]["stored_bytes"] == there


def test_no_spark_is_loaded(made: BackedUp) -> None:
    modules = loaded_modules("info", "--config", str(made.config))
    assert not {"pyspark", "confluent_kafka"} & modules


@pytest.mark.parametrize("work", ["backup", "restore"])
def test_driver_of_tasks_does_not_load_numba(made: BackedUp, work: str) -> None:
    """Loading it takes half a second of CPU, while the JVM needs it to start."""
    name = f"{made.topic}-{secrets.token_hex(4)}"
    more = ("--map", f"{made.topic}={name}") if work == "restore" else ("-a", f"{made.store.url}-{name}")
    modules = loaded_modules(work, "--config", str(made.config), "--topic", made.topic, *more)
    assert "pyspark.sql" in modules
    assert not {"numba.core"} & modules


def test_the_archive_is_not_there(made: BackedUp, capsys: Said) -> None:
    elsewhere = made.store.url.replace("/prefix", "/elsewhere")
    assert cli.main(["info", "-a", elsewhere, "--config", str(made.config)]) == 10
    assert "hint: check the address" in capsys.readouterr().err
    assert cli.main(["list", "s3://no-such-bucket-of-ours", "--config", str(made.config)]) == 14
    assert "hint: " in capsys.readouterr().err
