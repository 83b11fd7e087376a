"""The command `kbackup status`: one line, its exit code, JSON, a plugin's line, and metrics."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.store import open_store
from kbackup.util.times import rfc3339
from tests.support.archives import commit_point, make_archive
from tests.support.loaded_modules import loaded_modules

Said = pytest.CaptureFixture[str]


@pytest.fixture
def old(tmp_path: Path) -> str:
    """An archive whose newest restore point is of January 2026."""
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    return store.url


@pytest.fixture
def young(tmp_path: Path) -> str:
    """An archive with a restore point of 2.5 hours ago, and a loss of long ago."""
    store = open_store(str(tmp_path / "young"))
    archive = make_archive(store)
    at = rfc3339(datetime.now(UTC) - timedelta(hours=2, minutes=30))
    commit_point(archive, 3, archive.restore_point(2).topics, [], [], at=at)
    return store.url


def printed(capsys: Said, code: int, *args: str) -> list[str]:
    capsys.readouterr()
    assert main(["status", *args]) == code
    return capsys.readouterr().out.splitlines()


def test_a_well_archive_takes_one_line(young: str, capsys: Said) -> None:
    assert printed(capsys, 0, young) == [
        f"ok: {young}: restore point 3 is 2h30m old; 0 losses; never verified; no drill; 0 B added in 7 days"
    ]


def test_each_finding_has_a_line_with_its_command(old: str, capsys: Said) -> None:
    first, second = printed(capsys, 3, old)
    assert first.startswith(f"critical: {old}: restore point 2 is ")
    assert second.startswith("critical: the newest restore point, 2, is ")
    assert second.endswith("; backup.max_age is 26h; run: kbackup backup")


def test_a_plugins_line_holds_no_controls_and_one_bar(old: str, capsys: Said) -> None:
    (line,) = printed(capsys, 3, f"{old}/\x1b[2J\u202e|x", "--nagios")
    assert line.isprintable(), f"the line holds controls: {line!r}"
    assert "|" not in line


def test_the_age_can_be_chosen(old: str, capsys: Said) -> None:
    assert printed(capsys, 0, old, "--max-age", "40000d")[0].startswith("ok: ")


def test_findings_of_a_verification_end_with_the_code_of_damage(young: str, capsys: Said) -> None:
    assert main(["verify", young, "--quick", "-q"]) == 0
    assert re.search(r"; verified \(quick\) \d+s ago, no findings; ", printed(capsys, 0, young)[0])
    next(Path(young).glob("topics/orders/*_records")).unlink()
    assert main(["verify", young, "--quick", "-q"]) == 13
    lines = printed(capsys, 13, young)
    assert lines[0].startswith("critical: ")
    assert lines[1].endswith("repair the archive, then verify it again; run: kbackup repair")


def test_json_has_the_figures(old: str, capsys: Said) -> None:
    document = json.loads("\n".join(printed(capsys, 3, old, "--json")))
    assert (document["level"], document["newest"]["number"]) == ("critical", 2)
    assert document["findings"][0]["command"] == "kbackup backup"
    assert document["max_age_seconds"] == 93600


def test_a_plugin_prints_figures(young: str, capsys: Said) -> None:
    (line,) = printed(capsys, 0, young, "--nagios")
    text, figures = line.split(" | ")
    assert text.startswith("KBACKUP OK - restore point 3 is 2h30m old; ")
    assert figures.split()[0].endswith("s;;93600;0")
    assert figures.split()[1:] == ["losses=0", "damaged_points=0", "growth=0B"]


def test_a_plugin_has_its_own_codes(old: str, tmp_path: Path, capsys: Said) -> None:
    (line,) = printed(capsys, 2, old, "--nagios")
    assert line.startswith("KBACKUP CRITICAL - the newest restore point, 2, is ")
    (line,) = printed(capsys, 3, str(tmp_path / "none"), "--nagios")
    assert line.startswith("KBACKUP UNKNOWN - there is no archive at ")


def test_metrics_tell_the_level(old: str, tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "kbackup.prom"
    printed(capsys, 3, old, "--metrics-file", str(file))
    text = file.read_text()
    assert f'kbackup_status_level{{archive="{old}",command="status"}} 2.0' in text
    assert f'kbackup_restore_point{{archive="{old}",command="status"}} 2.0' in text


def test_no_library_of_spark_kafka_or_s3_is_loaded(young: str) -> None:
    heavy = {"pyspark", "py4j", "confluent_kafka", "boto3", "numba", "fastapi"}
    assert not heavy & loaded_modules("status", young)
