"""The command `find`, refusals, and damage among records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.store import open_store
from tests.support.archive_commands import Said, lines, run
from tests.support.archives import T0, make_archive

pytestmark = pytest.mark.exhaustive(keep=3)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["value 15 "], ["clicks:0:15", "orders:0:15"]),
        (["VALUE 15 ", "orders", "-i"], ["orders:0:15"]),
        (["^value 1[01] ", "orders", "-E"], ["orders:1:10", "orders:1:11"]),
        (
            ["value", "orders:0:8-20", "--in", "value"],
            ["orders:0:8", "orders:0:9", "orders:0:15", "orders:0:17", "orders:0:18", "orders:0:19"],
        ),
        (["value", "--in", "key", "--in", "headers"], []),
        (["trace", "--in", "headers", "-c", "1"], ["clicks:0:0"]),
        (["value", "orders", "--to-time", str(T0), "-b", "1"], ["orders:0:0", "orders:1:0"]),
    ],
)
def test_find(root: str, args: Sequence[str], expected: list[str], capsys: Said) -> None:
    assert run(capsys, "find", *args, "-a", root, "-q", "-f", r"%t:%p:%o\n").split() == expected
    told = lines(capsys, "find", *args, "-a", root, "-q")
    assert [f"{r['topic']}:{r['partition']}:{r['offset']}" for r in told] == expected


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["cat", "orders:0:12"], "use 'orders:0:12-' to begin at the next record; the archive has offsets 0 to 41"),
        (["cat", f"orders:0:{10**19 - 1}"], f"use 'orders:0:{10**19 - 1}-' to begin at the next record"),
        (["cat", "orders:7"], "run 'kbackup ls orders', which lists its 3"),
        (["cat", "order"], "did you mean orders?"),
        (["cat", "orders:x"], "give topic, topic:partition,"),
        (["cat", "orders:0:5-5"], "give topic, topic:partition,"),
        (["cat", "orders", "--from-time", "noon"], "give a time such as"),
        (["cat", "orders", "--from-time", "2", "--to-time", "1"], "give the earlier time as --from-time"),
        (["cat", "orders:0:5-", "--tail", "1"], "leave out offsets"),
        (["cat", "orders", "--tail", "1", "--to-time", "now"], "leave out offsets"),
        (["cat", "orders", "--to-time", "noon"], "give a time such as"),
        (["ls", "order", "--to-time", "now"], "did you mean orders?"),
        (["cat", "orders:7", "--to-time", "now"], "run 'kbackup ls orders', which lists its 3"),
        (["cat", "orders", "--format", "%x"], "use %t %p"),
        (["cat", "orders", "--format", "50%"], "use %t %p"),
        (["cat", "orders", "--format", "\udcff"], r"write a byte as \xff"),
        (["cat", "orders", "--format", "%v", "--json"], "give one of the three"),
        (["cat", "orders", "--raw"], "give a format, as in --format"),
        (["find", "(", "-E"], "write a regular expression"),
        (["find", "x", "order"], "did you mean orders?"),
        (["ls", "orders:0:5"], "give topic or topic:partition"),
        (["ls", "../orders"], "give topic, topic:partition,"),
        (["ls", "orders/3"], "run 'kbackup ls orders', which lists its 3"),
    ],
)
def test_refusals(root: str, args: list[str], hint: str, capsys: Said) -> None:
    assert cli.main([*args, "-a", root]) == 2
    assert f"hint: {hint}" in capsys.readouterr().err


@pytest.mark.parametrize("good", [0, 2])
def test_damage_among_records(tmp_path: Path, good: int, capsys: Said) -> None:
    """Records before an error are printed; a document of the error stands alone or not at all."""
    archive = make_archive(open_store(str(tmp_path / "archive")))
    segments = [s for s in archive.segments(archive.restore_point("latest")) if s.topic == "orders"]
    bad = tmp_path / "archive" / segments[good].key
    bad.write_bytes(b"\x01" + b"\x7f" * (segments[good].bytes - 1))
    assert cli.main(["cat", "orders:0", "-a", str(tmp_path / "archive"), "--json"]) == 13
    out, err = capsys.readouterr()
    assert f"kbackup: {segments[good].key} at byte 1: another record offset" in err
    if good:
        assert [json.loads(line)["offset"] for line in out.splitlines()] == list(range(10))
    else:
        assert json.loads(out)["error"]["exit_code"] == 13
