"""Drills and comparisons of topics of all kinds: odd records, transactions, gaps, the broker's times, large records."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.integration.backed_up import Run, runner
from tests.integration.conftest import Kbackup
from tests.integration.zoo import FIRST, SECOND, Zoo


@pytest.fixture
def run(zoo: Zoo, kbackup: Kbackup, spark: SparkSession) -> Run:
    on_session = runner(spark, kbackup.config)
    return lambda command, *arguments: on_session(command, zoo.archive.url, *arguments)


@pytest.mark.parametrize(("moment", "names"), [(1, FIRST), (3, SECOND)])
def test_a_drill_of_every_kind(run: Run, zoo: Zoo, moment: int, names: list[str]) -> None:
    code, report = run("drill", "--on-source", "--restore-point", str(moment))
    assert (code, report["result"], report["findings"]) == (0, "passed", [])
    held = sum(len(some) for name in names for some in zoo.held(name, moment).values())
    compared = report["comparison"]
    assert (compared["records"], compared["same"], compared["after"]) == (held, held, 0)
    assert {t["source"] for t in compared["topics"]} == {zoo.topic(name) for name in names}
    assert {g["how"] for g in compared["groups"]} == {"exact", "next record", "log end", "log start", "empty"}
    assert any("timestamp 0" in warning for warning in report["warnings"])


def test_a_window_in_time(run: Run, zoo: Zoo) -> None:
    """Records of the years up to 2020, of topics that have such; no other is expected on the target."""
    names = ["odd", "long", "compacted"]
    restore_id = f"{zoo.prefix}-window"
    window = ["--to-time", "1600000000002", *(f"--topic={zoo.topic(name)}" for name in names)]
    where = ["--map-regex=^=compared.window.", "--topic-config=retention.ms=-1", "--no-groups"]
    code, restored = run("restore", *window, *where, "--restore-id", restore_id)
    assert code == 0, restored
    code, report = run("verify", "--against", "target", "--restore-id", restore_id, "--exact")
    assert (code, report["findings"]) == (0, [])
    assert report["records"] == report["same"] == restored["records"] > 5
    code, report = run("verify", "--against", "target", *window[2:], where[0])
    assert (code, set(report["counts"])) == (3, {"missing"}), "without the window"


def test_the_source_as_it_went_on(run: Run, zoo: Zoo) -> None:
    code, report = run("verify", "--against", "source")
    assert (code, report["findings"]) == (0, [])
    (note,) = [n for n in report["notes"] if zoo.topic("overtaken") in n]
    assert "no longer in the source: not compared" in note
    assert report["records"] == report["same"] > 3000
    code, report = run("verify", "--against", "source", "--restore-point", "1")
    assert code == 3, "two topics are gone or others by now"
    wrong = {t["source"] for t in report["topics"] if not t["ok"]}
    assert wrong == {zoo.topic("gone"), zoo.topic("reborn")}
