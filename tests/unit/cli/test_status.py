"""The command `kbackup status`: one line, its exit code, JSON, a plugin's line, and metrics."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kbackup.store import open_store
from kbackup.util.times import rfc3339
from tests.support.archives import commit_point, make_archive
from tests.support.printed import Kbackup, loaded_modules


@pytest.fixture
def young(tmp_path: Path) -> str:
    """An archive with a restore point of 2.5 hours ago, and a loss of long ago."""
    store = open_store(str(tmp_path / "young"))
    archive = make_archive(store)
    at = rfc3339(datetime.now(UTC) - timedelta(hours=2, minutes=30))
    commit_point(archive, 3, at=at)
    return store.url


def test_a_well_archive_takes_one_line(young: str, kbackup: Kbackup) -> None:
    assert kbackup("status", young).lines == [
        f"ok: {young}: restore point 3 is 2h30m old; 0 losses; never verified; no drill; 0 B added in 7 days"
    ]


def test_each_finding_has_a_line_with_its_command(root: str, kbackup: Kbackup) -> None:
    first, second = kbackup("status", root, code=3).lines
    assert first.startswith(f"critical: {root}: restore point 2 is ")
    assert second.startswith("critical: the newest restore point, 2, is ")
    assert second.endswith(f"; backup.max_age is 26h; run: kbackup backup --archive {root}")
    assert kbackup("status", root, "--max-age", "40000d").out.startswith("ok: ")
    document = kbackup("status", root, "--json", code=3).json
    assert (document["level"], document["newest"]["number"]) == ("critical", 2)
    assert document["findings"][0]["command"] == f"kbackup backup --archive {root}"
    assert document["max_age_seconds"] == 93600


def test_findings_of_a_verification_end_with_the_code_of_damage(young: str, kbackup: Kbackup) -> None:
    kbackup("verify", young, "--quick", "-q")
    assert re.search(r"; verified \(quick\) \d+s ago, no findings; ", kbackup("status", young).lines[0])
    next(Path(young).glob("topics/orders/*_records")).unlink()
    kbackup("verify", young, "--quick", "-q", code=13)
    lines = kbackup("status", young, code=13).lines
    assert lines[0].startswith("critical: ")
    assert lines[1].endswith(f"; then verify it again; run: kbackup repair --archive {young}")


def test_commands_find_the_archive_as_this_run_did(root: str, tmp_path: Path, kbackup: Kbackup) -> None:
    config = tmp_path / "my kbackup.toml"
    config.write_text('[source]\nbootstrap.servers = "broker-1:9092"\n')
    flags = ["--config", str(config), "--s3-region", "eu-central-1"]
    document = kbackup("status", root, *flags, "--json", code=3).json
    command = shlex.split(document["findings"][0]["command"])
    assert command == ["kbackup", "backup", "--archive", root, "--config", str(config), "--s3-region", "eu-central-1"]


def test_a_plugin_prints_figures(young: str, kbackup: Kbackup) -> None:
    (line,) = kbackup("status", young, "--nagios").lines
    text, figures = line.split(" | ")
    assert text.startswith("KBACKUP OK - restore point 3 is 2h30m old; ")
    assert figures.split()[0].endswith("s;;93600;0")
    assert figures.split()[1:] == ["losses=0", "damaged_points=0", "growth=0B"]


def test_a_plugin_has_its_own_codes(root: str, tmp_path: Path, kbackup: Kbackup) -> None:
    (line,) = kbackup("status", root, "--nagios", code=2).lines
    assert line.startswith("KBACKUP CRITICAL - the newest restore point, 2, is ")
    (line,) = kbackup("status", str(tmp_path / "none"), "--nagios", code=3).lines
    assert line.startswith("KBACKUP UNKNOWN - there is no archive at ")
    (line,) = kbackup("status", f"{root}/\x1b[2J\u202e|x", "--nagios", code=3).lines
    assert line.isprintable(), f"the line holds controls: {line!r}"
    assert "|" not in line


def test_metrics_tell_the_level(root: str, tmp_path: Path, kbackup: Kbackup) -> None:
    file = tmp_path / "kbackup.prom"
    kbackup("status", root, "--metrics-file", str(file), code=3)
    text = file.read_text()
    assert f'kbackup_status_level{{archive="{root}",command="status"}} 2.0' in text
    assert f'kbackup_restore_point{{archive="{root}",command="status"}} 2.0' in text


def test_no_library_of_spark_kafka_or_s3_is_loaded(young: str) -> None:
    heavy = {"pyspark", "py4j", "confluent_kafka", "boto3", "numba", "fastapi"}
    assert not heavy & loaded_modules("status", young)
