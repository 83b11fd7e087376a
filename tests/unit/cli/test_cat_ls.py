"""The commands `cat`, `ls` and `find` on an archive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.util.times import human_time
from tests.support.archive_commands import Said, lines, run
from tests.support.archives import T0

pytestmark = pytest.mark.exhaustive(keep=3)


def test_topics(root: str, capsys: Said) -> None:
    rows = [line.split() for line in run(capsys, "ls", "-a", root).splitlines()]
    assert [row[:6] for row in rows[1:]] == [
        ["clicks", "deleted", "1", "1", "3", "20"],
        ["orders", "present", "2", "3", "7", "46"],
    ]
    document = json.loads(run(capsys, "ls", "-a", root, "--json"))
    assert (document["restore_point"], [t["topic"] for t in document["topics"]]) == (2, ["clicks", "orders"])
    assert document["topics"][1]["max_timestamp"] == T0 + 39_000


def test_partitions_and_segments(root: str, capsys: Said) -> None:
    rows = [line.split() for line in run(capsys, "ls", "orders", "-a", root).splitlines()]
    assert [row[:5] for row in rows[1:]] == [
        ["0", "0", "41", "5", "34"],
        ["1", "0", "12", "2", "12"],
        ["2", "0", "0", "0", "0"],
    ]
    told = run(capsys, "ls", "orders/0", "-a", root)
    assert human_time(T0 + 15_000) in told.splitlines()[3]
    (segments,) = [json.loads(run(capsys, "ls", "orders/0/", "-a", root, "--json"))["segments"]]
    assert [(s["first"], s["last"], s["records"]) for s in segments][:3] == [(0, 7, 8), (8, 9, 2), (15, 23, 8)]
    assert (Path(root) / segments[0]["file"]).stat().st_size == segments[0]["stored_bytes"]
    earlier = json.loads(run(capsys, "ls", "orders/0", "-a", root, "-b", "1", "--json"))["segments"]
    assert earlier == segments[:2]


@pytest.mark.parametrize(
    ("args", "offsets"),
    [
        (["orders:0:15"], [15]),
        (["orders:0:8-17"], [8, 9, 15]),
        (["orders:0:38-"], [38, 39]),
        (["orders:0:-2"], [0, 1]),
        (["orders:0", "--limit", "3"], [0, 1, 2]),
        (["orders", "--tail", "2"], [38, 39, 10, 11]),
        (["orders", "-c", "36"], [*range(10), 15, *range(17, 40), 0, 1]),
        (["orders", "--from-time", str(T0 + 11_000), "--to-time", str(T0 + 17_000)], [15, 17, 11]),
        (["orders:0:16-", "--to-time", str(T0 + 17_999)], [17]),
        (["orders:2"], []),
        (["clicks:0:18-", "-b", "1"], [18, 19]),
        (["orders:0:15", "--from-time", str(T0 + 16_000)], []),
    ],
)
def test_which_records(root: str, args: Sequence[str], offsets: list[int], capsys: Said) -> None:
    assert [r["offset"] for r in lines(capsys, "cat", *args, "-a", root, "-q")] == offsets


AT = [str(T0 + 1000), "2026-01-01T12:00:00Z", "2026-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "now"]


@pytest.mark.parametrize("at", AT[:-1])
def test_ls_and_info_agree_on_a_moment(root: str, at: str, capsys: Said) -> None:
    """The same topics, partitions and sums, by the same rules, in the same words."""
    assert cli.main(["info", "--to-time", at, "-a", root, "--json"]) == 0
    info, notes = capsys.readouterr()
    listing = json.loads(info)
    for path in ["", *(topic["name"] for topic in listing["topics"])]:
        assert cli.main(["ls", *([path] if path else []), "--to-time", at, "-a", root, "--json"]) == 0
        out, err = capsys.readouterr()
        document = json.loads(out)
        assert {**document["choice"], "left_out": []} == {**listing["choice"], "left_out": []}
        assert {*document["choice"]["left_out"]} <= {*listing["choice"]["left_out"]}
        if not path:
            assert (err, document["choice"]) == (notes, listing["choice"])
            assert [(t["topic"], t["state"], t["records"]) for t in document["topics"]] == [
                (t["name"], t["state"], t["sums"]["records"]) for t in listing["topics"]
            ]
        else:
            (topic,) = (t for t in listing["topics"] if t["name"] == path)
            assert [(p["partition"], p["start"], p["end"], p["records"]) for p in document["partitions"]] == [
                (p["partition"], p["start"], p["end"], p["sums"]["records"]) for p in topic["partitions"]
            ]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["cat", "orders", "--to-time", AT[0]], ["orders:0:0", "orders:0:1", "orders:1:0", "orders:1:1"]),
        (["cat", "orders:0:1-", "--to-time", AT[0]], ["orders:0:1"]),
        (["cat", "orders:0", "--to-time", str(T0)], ["orders:0:0"]),
        (["find", "value", "--to-time", AT[0], "-c", "3"], ["clicks:0:0", "clicks:0:1", "orders:0:0"]),
        (["cat", "orders", "--to-time", AT[3]], []),
    ],
)
def test_records_as_of_a_moment(root: str, args: list[str], expected: list[str], capsys: Said) -> None:
    assert cli.main([*args, "-a", root, "-f", r"%t:%p:%o\n", "-q"]) == 0
    assert capsys.readouterr().out.split() == expected
