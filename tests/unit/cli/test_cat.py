"""The commands `cat`, `ls` and `find` on archives and on folders of the Java tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup import cli
from kbackup.cli.common.records import as_format, as_hex, as_json, as_text, parse_address, parse_partition
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from kbackup.formats.record import Row
from kbackup.store import open_store
from kbackup.types import TopicPartition
from kbackup.util.times import human_time
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archive_commands import Said, lines, run
from tests.support.archives import T0, make_archive
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.loaded_modules import loaded_modules
from tests.unit.cli.test_output import EVIL, harmless

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


# Addresses of archived topics, partitions and records.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.b-c_1", TopicAddress("a.b-c_1")),
        ("orders/", TopicAddress("orders")),
        ("orders:0", TopicAddress("orders", 0)),
        ("orders/0", TopicAddress("orders", 0)),
        ("orders/0/", TopicAddress("orders", 0)),
        ("a.b-c_1:2:3", TopicAddress("a.b-c_1", 2, 3, 4, one=True)),
        ("orders/2/3", TopicAddress("orders", 2, 3, 4, one=True)),
        ("t:0:-9", TopicAddress("t", 0, None, 9)),
        ("t/0:4-", TopicAddress("t", 0, 4)),
    ],
)
def test_addresses(text: str, address: TopicAddress) -> None:
    assert parse_address(text) == address
    if not address.ranged:
        assert parse_partition(text) == address


def test_texts_that_are_not_addresses() -> None:
    assert parse_partition("/") is None
    for text in ("", "t:", "t:1:", "t:1:2:3", "t\n", "t:\u0661", "t:1:2-1", "/t", "t//1"):
        with pytest.raises(UsageError):
            parse_address(text)


def test_colons_and_slashes_are_the_same_everywhere(root: str, capsys: Said) -> None:
    for command in (["ls"], ["cat"], ["find", "1"]):
        with_colon, with_slash = (run(capsys, *command, f"orders{sign}0", "-a", root) for sign in ":/")
        assert with_colon
        assert with_colon == with_slash


# The commands `cat` and `ls` on a folder of the Java tool.


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


# The output of `cat`: JSON, text, bytes, and readers that leave.


TP = TopicPartition("orders", 3)
NASTY = Row(7, 0, T0, b"\x1b[2J\xff", None, ((b"h\n", b"\x00"), (b"\xfe", None)))


def test_json_is_exact() -> None:
    shown = as_json(TP, NASTY)
    assert isinstance(shown, str)
    assert harmless(shown)
    document = json.loads(shown)
    assert document["key"] == {"base64": "G1sySv8="}
    assert document["value"] is None
    assert document["headers"] == [{"key": "h\n", "value": "\x00"}, {"key": {"base64": "/g=="}, "value": None}]
    told = json.loads(as_json(TP, NASTY._replace(timestamp_type=-2, timestamp=None)))
    assert (told["timestamp"], told["timestamp_type"]) == (None, "CreateTime")


def test_text_and_hex() -> None:
    assert as_text(TP, NASTY) == ("orders:3:7\t2023-11-14T22:13:20.000Z\t\\x1b[2J\\xff\tnull\th\\n=\\x00,\\xfe=null\n")
    assert as_hex(TP, NASTY._replace(value=bytes(range(32, 49)), headers=())).splitlines() == [
        "orders:3:7  2023-11-14T22:13:20.000Z  CreateTime",
        "key, 5 bytes",
        "00000000  1b 5b 32 4a ff                                    |.[2J.|",
        "value, 17 bytes",
        "00000000  20 21 22 23 24 25 26 27  28 29 2a 2b 2c 2d 2e 2f  | !\"#$%&'()*+,-./|",
        "00000010  30                                                |0|",
        "",
    ]


def test_formats() -> None:
    row = Row(7, 0, T0, b"key", b"v\xc3\xa4\x07", ((b"a", b"1"), (b"b", None)))
    every = r"%t %p %o %T %k %K %v %s %V %S %h %% é\t\x41\\\n"
    told = f"orders 3 7 {T0} key 3 {{0}} {{0}} 4 4 a=1,b= % é\tA\\\n"
    assert as_format(every)(TP, row) == told.format(r"vä\x07")
    assert as_format(every, raw=True)(TP, row) == told.format("vä\x07").encode()
    bare = row._replace(timestamp=None, timestamp_type=-1, key=None, value=None, headers=())
    assert as_format("%T,%k,%K,%v,%V,%h,%R")(TP, bare) == r"-1,,-1,,-1,,\xff\xff\xff\xff"
    assert as_format(r"%R\xff", raw=True)(TP, row) == b"\x00\x00\x00\x04\xff"


@given(st.binary() | st.sampled_from([text.encode("utf-8", "surrogatepass") for text in EVIL]))
def test_nothing_steers_a_terminal(data: bytes) -> None:
    row = Row(0, 0, 0, data, data, ((data, data),))
    for show in (as_text, as_json, as_hex, as_format(r"%k %v %h\n")):
        shown = show(TP, row)
        assert isinstance(shown, str)
        assert harmless(shown.replace("\t", ""))
    key = json.loads(as_json(TP, row))["key"]
    assert key == data.decode() if isinstance(key, str) else key["base64"]


def process(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kbackup", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.exhaustive
def test_bytes_go_into_a_pipe_as_they_are(root: str) -> None:
    out, err = process("cat", "orders:0:15", "-f", r"%k\x00%v", "--raw", "-a", root).communicate()
    assert (out, err) == (b"key 0\x00" + b"value 15 of 0 " * 6, b"")


def test_a_reader_that_leaves(root: str) -> None:
    with process("cat", "orders", "-a", root) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_a_terminal_gets_no_raw_bytes(root: str, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert cli.main(["cat", "orders", "-f", "%v", "--raw", "-a", root]) == 2
    assert "stdout is a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["ls", "orders"], ["cat", "orders:0:5"]])
@pytest.mark.exhaustive(keep=1)
def test_neither_spark_nor_kafka_is_loaded(root: str, args: list[str]) -> None:
    assert not {"pyspark", "confluent_kafka", "boto3"} & loaded_modules(*args, "-a", root)


# The command `find`, refusals, and damage among records.


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
