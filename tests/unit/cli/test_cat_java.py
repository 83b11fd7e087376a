"""The commands `cat` and `ls` on a folder of the Java tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbackup import cli
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archive_commands import Said, lines, run
from tests.support.archives import T0
from tests.support.java_sink import FLAWS, torn_folder

pytestmark = pytest.mark.exhaustive(keep=3)


def test_a_folder_of_the_java_tool_as_of_a_moment(capsys: Said) -> None:
    """Its segments' times are not known without reading them; its records' are."""
    folder = str(JAVA / "archive")
    assert cli.main(["ls", "-a", folder, "--to-time", str(T0), "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert "has no restore points" in err
    every = [r for t in document["topics"] for r in lines(capsys, "cat", t["topic"], "-a", folder)]
    times = sorted(r["timestamp"] for r in every if r["timestamp"] is not None)
    at = times[len(times) // 2]
    result = []
    for topic in document["topics"]:
        assert cli.main(["cat", topic["topic"], "-a", folder, "--to-time", str(at), "--json", "-q"]) == 0
        result += [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert result == [r for r in every if r["timestamp"] is not None and r["timestamp"] <= at]
    assert 0 < len(result) < len(every)


def test_a_folder_of_the_java_tool(capsys: Said) -> None:
    folder = str(JAVA / "archive")
    topics = json.loads(run(capsys, "ls", "-a", folder, "--json"))["topics"]
    found = sum(len(lines(capsys, "cat", topic["topic"], "-a", folder)) for topic in topics)
    assert found == sum(topic["records"] for topic in topics) == 385


def test_a_folder_that_a_killed_sink_left(tmp_path: Path, capsys: Said) -> None:
    folder, whole = str(torn_folder(tmp_path / "java")), str(JAVA / "archive")
    assert cli.main(["ls", "-a", folder]) == 0
    out, err = capsys.readouterr()
    assert out == run(capsys, "ls", "-a", whole)
    assert "warning: file payments/index_partition_000 is missing" in err
    for topic in ("orders.v1", "payments", "audit_log"):
        assert cli.main(["cat", topic, "-a", folder, "--json"]) == 0
        out, err = capsys.readouterr()
        assert [json.loads(line) for line in out.splitlines()] == lines(capsys, "cat", topic, "-a", whole)
        assert all(f"file {file} " in err for file in FLAWS if file.startswith(f"{topic}/"))
    assert cli.main(["info", "-a", folder, "-q"]) == 0
    assert cli.main(["find", "no record has this", "-a", folder, "-q"]) == 0
