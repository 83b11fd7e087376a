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

from kbackup.cli.common.record_formats import as_format, as_hex, as_json, as_text
from kbackup.cli.common.records import parse_address, parse_partition
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from kbackup.formats.record import Row
from kbackup.store import open_store
from kbackup.types import TopicPartition
from kbackup.util.times import human_time
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import T0, make_archive
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.printed import Kbackup, loaded_modules
from tests.unit.cli.test_output import EVIL, harmless

pytestmark = pytest.mark.exhaustive(keep=3)

FOLDER = str(JAVA / "archive")
TP = TopicPartition("orders", 3)
NASTY = Row(7, 0, T0, b"\x1b[2J\xff", None, ((b"h\n", b"\x00"), (b"\xfe", None)))
AT = [str(T0 + 1000), "2026-01-01T12:00:00Z", "2026-01-01T00:00:00Z"]


def test_ls_lists_each_topic_with_its_incarnations_and_records(root: str, kbackup: Kbackup) -> None:
    clicks, orders = kbackup("ls", "-a", root).table("TOPIC")
    assert (clicks["TOPIC"], clicks["STATE"], clicks["AS OF"]) == ("clicks", "deleted", "1")
    assert (clicks["PARTITIONS"], clicks["SEGMENTS"], clicks["RECORDS"]) == ("1", "3", "20")
    assert (orders["TOPIC"], orders["STATE"], orders["AS OF"]) == ("orders", "present", "2")
    assert (orders["PARTITIONS"], orders["SEGMENTS"], orders["RECORDS"]) == ("3", "7", "46")
    document = kbackup("ls", "-a", root, "--json").json
    assert (document["restore_point"], [t["topic"] for t in document["topics"]]) == (2, ["clicks", "orders"])
    assert document["topics"][1]["max_timestamp"] == T0 + 39_000


def test_ls_lists_partitions_of_a_topic_and_segments_of_a_partition(root: str, kbackup: Kbackup) -> None:
    columns = ("PARTITION", "START", "END", "SEGMENTS", "RECORDS")
    partitions = kbackup("ls", "orders", "-a", root).table("PARTITION")
    assert [{name: row[name] for name in columns} for row in partitions] == [
        {"PARTITION": "0", "START": "0", "END": "41", "SEGMENTS": "5", "RECORDS": "34"},
        {"PARTITION": "1", "START": "0", "END": "12", "SEGMENTS": "2", "RECORDS": "12"},
        {"PARTITION": "2", "START": "0", "END": "0", "SEGMENTS": "0", "RECORDS": "0"},
    ]
    assert human_time(T0 + 15_000) in kbackup("ls", "orders/0", "-a", root).lines[3]
    segments = kbackup("ls", "orders/0/", "-a", root, "--json").json["segments"]
    assert [(s["first"], s["last"], s["records"]) for s in segments][:3] == [(0, 7, 8), (8, 9, 2), (15, 23, 8)]
    assert (Path(root) / segments[0]["file"]).stat().st_size == segments[0]["stored_bytes"]
    assert kbackup("ls", "orders/0", "-a", root, "-b", "1", "--json").json["segments"] == segments[:2]


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
def test_which_records(root: str, args: Sequence[str], offsets: list[int], kbackup: Kbackup) -> None:
    printed = kbackup("cat", *args, "-a", root, "-q", "--json")
    assert ([record["offset"] for record in printed.records], printed.err) == (offsets, "")


@pytest.mark.parametrize("at", AT)
def test_ls_and_info_agree_on_a_moment(root: str, at: str, kbackup: Kbackup) -> None:
    """The same topics, partitions and sums, by the same rules, in the same words."""
    info = kbackup("info", "--to-time", at, "-a", root, "--json")
    listing = info.json
    printed = kbackup("ls", "--to-time", at, "-a", root, "--json")
    assert (printed.err, printed.json["choice"]) == (info.err, listing["choice"])
    assert [(t["topic"], t["state"], t["records"]) for t in printed.json["topics"]] == [
        (t["name"], t["state"], t["sums"]["records"]) for t in listing["topics"]
    ]
    for topic in listing["topics"]:
        document = kbackup("ls", topic["name"], "--to-time", at, "-a", root, "--json").json
        assert {**document["choice"], "left_out": []} == {**listing["choice"], "left_out": []}
        assert {*document["choice"]["left_out"]} <= {*listing["choice"]["left_out"]}
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
        (["find", "value 15 "], ["clicks:0:15", "orders:0:15"]),
        (["find", "VALUE 15 ", "orders", "-i"], ["orders:0:15"]),
        (["find", "^value 1[01] ", "orders", "-E"], ["orders:1:10", "orders:1:11"]),
        (
            ["find", "value", "orders:0:8-20", "--in", "value"],
            ["orders:0:8", "orders:0:9", "orders:0:15", "orders:0:17", "orders:0:18", "orders:0:19"],
        ),
        (["find", "value", "--in", "key", "--in", "headers"], []),
        (["find", "trace", "--in", "headers", "-c", "1"], ["clicks:0:0"]),
        (["find", "value", "orders", "--to-time", str(T0), "-b", "1"], ["orders:0:0", "orders:1:0"]),
    ],
)
def test_records_as_of_a_moment_or_with_a_text(
    root: str, args: list[str], expected: list[str], kbackup: Kbackup
) -> None:
    assert kbackup(*args, "-a", root, "-f", r"%t:%p:%o\n", "-q") == ("".join(f"{each}\n" for each in expected), "")
    records = kbackup(*args, "-a", root, "-q", "--json").records
    assert [f"{r['topic']}:{r['partition']}:{r['offset']}" for r in records] == expected


@pytest.mark.parametrize("args", [["info"], ["ls"], ["cat", "orders"], ["find", "value"]])
def test_a_moment_before_the_archive_begins_is_refused(root: str, args: list[str], kbackup: Kbackup) -> None:
    refused = kbackup(*args, "-a", root, "--to-time", "2020-01-01 00:00Z", code=2)
    assert "2020-01-01T00:00:00.000Z is before the archive begins" in refused.err
    assert "its earliest record of 2023-11-14T22:13:20.000Z" in refused.err


def test_a_moment_is_shown_in_utc_and_by_the_clock_of_the_zone(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("ls", "-a", root, "--to-time", "2026-01-01 13:00", "--tz", "Europe/Berlin")
    assert (
        "records up to 2026-01-01T12:00:00.000Z (2026-01-01 13:00:00 +01:00 in Europe/Berlin), included" in printed.err
    )


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
def test_an_address_names_a_topic_a_partition_or_offsets(text: str, address: TopicAddress) -> None:
    assert parse_address(text) == address
    if not address.ranged:
        assert parse_partition(text) == address


def test_texts_that_are_not_addresses() -> None:
    assert parse_partition("/") is None
    for text in ("", "t:", "t:1:", "t:1:2:3", "t\n", "t:\u0661", "t:1:2-1", "/t", "t//1"):
        with pytest.raises(UsageError):
            parse_address(text)


def test_colons_and_slashes_are_the_same_everywhere(root: str, kbackup: Kbackup) -> None:
    for command in (["ls"], ["cat"], ["find", "1"]):
        with_colon, with_slash = (kbackup(*command, f"orders{sign}0", "-a", root) for sign in ":/")
        assert with_colon.out
        assert with_colon == with_slash


def test_a_folder_of_the_java_tool_as_of_a_moment(kbackup: Kbackup) -> None:
    """Its segments' times are not known without reading them; its records' are."""
    listing = kbackup("ls", "-a", FOLDER, "--to-time", str(T0), "--json")
    assert "has no restore points" in listing.err
    topics = listing.json["topics"]
    every = [r for t in topics for r in kbackup("cat", t["topic"], "-a", FOLDER, "--json").records]
    assert len(every) == sum(t["records"] for t in kbackup("ls", "-a", FOLDER, "--json").json["topics"]) == 385
    times = sorted(r["timestamp"] for r in every if r["timestamp"] is not None)
    at = times[len(times) // 2]
    moment = ("--to-time", str(at), "--json", "-q")
    result = [r for t in topics for r in kbackup("cat", t["topic"], "-a", FOLDER, *moment).records]
    assert result == [r for r in every if r["timestamp"] is not None and r["timestamp"] <= at]
    assert 0 < len(result) < len(every)


def test_a_folder_that_a_killed_sink_left(tmp_path: Path, kbackup: Kbackup) -> None:
    folder = str(torn_folder(tmp_path / "java"))
    torn = kbackup("ls", "-a", folder)
    assert (torn.out, "") == kbackup("ls", "-a", FOLDER)
    assert "warning: file payments/index_partition_000 is missing" in torn.err
    for topic in ("orders.v1", "payments", "audit_log"):
        torn = kbackup("cat", topic, "-a", folder, "--json")
        assert (torn.out, "") == kbackup("cat", topic, "-a", FOLDER, "--json")
        assert all(f"file {file} " in torn.err for file in FLAWS if file.startswith(f"{topic}/"))
    kbackup("info", "-a", folder, "-q")
    kbackup("find", "no record has this", "-a", folder, "-q")


def test_a_record_as_json_has_every_byte() -> None:
    shown = as_json(TP, NASTY)
    assert isinstance(shown, str)
    assert harmless(shown)
    document = json.loads(shown)
    assert (document["key"], document["value"]) == ({"base64": "G1sySv8="}, None)
    assert document["headers"] == [{"key": "h\n", "value": "\x00"}, {"key": {"base64": "/g=="}, "value": None}]
    timeless = json.loads(as_json(TP, NASTY._replace(timestamp_type=-2, timestamp=None)))
    assert (timeless["timestamp"], timeless["timestamp_type"]) == (None, "CreateTime")


def test_a_record_as_text_or_hex_has_no_control_character() -> None:
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


def test_a_format_shows_each_part_of_a_record() -> None:
    row = Row(7, 0, T0, b"key", b"v\xc3\xa4\x07", ((b"a", b"1"), (b"b", None)))
    every = r"%t %p %o %T %k %K %v %s %V %S %h %% é\t\x41\\\n"
    expected = f"orders 3 7 {T0} key 3 {{0}} {{0}} 4 4 a=1,b= % é\tA\\\n"
    assert as_format(every)(TP, row) == expected.format(r"vä\x07")
    assert as_format(every, raw=True)(TP, row) == expected.format("vä\x07").encode()
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
    command = [sys.executable, "-m", "kbackup", *args]
    return subprocess.Popen(command, stdout=-1, stderr=-1, env=os.environ | {"PYTHONUNBUFFERED": "1"})


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


def test_a_terminal_gets_no_raw_bytes(root: str, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "stdout is a terminal" in kbackup("cat", "orders", "-f", "%v", "--raw", "-a", root, code=2).err


@pytest.mark.parametrize("args", [["ls", "orders"], ["cat", "orders:0:5"]])
@pytest.mark.exhaustive(keep=1)
def test_neither_spark_nor_kafka_is_loaded(root: str, args: list[str]) -> None:
    assert not {"pyspark", "confluent_kafka", "boto3"} & loaded_modules(*args, "-a", root)


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
        (["cat", "orders", "--raw", "--decode", "mm2"], "leave --raw out to decode"),
        (["find", "(", "-E"], "write a regular expression"),
        (["find", "x", "order"], "did you mean orders?"),
        (["ls", "orders:0:5"], "give topic or topic:partition"),
        (["ls", "../orders"], "give topic, topic:partition,"),
        (["ls", "orders/3"], "run 'kbackup ls orders', which lists its 3"),
    ],
)
def test_a_wrong_address_or_selection_is_refused_with_a_hint(
    root: str, args: list[str], hint: str, kbackup: Kbackup
) -> None:
    assert f"hint: {hint}" in kbackup(*args, "-a", root, code=2).err


@pytest.mark.parametrize("good", [0, 2])
def test_records_before_damage_are_printed(tmp_path: Path, good: int, kbackup: Kbackup) -> None:
    """Records before an error are printed; a document of the error stands alone or not at all."""
    archive = make_archive(open_store(str(tmp_path / "archive")))
    segments = [s for s in archive.segments(archive.restore_point("latest")) if s.topic == "orders"]
    bad = tmp_path / "archive" / segments[good].key
    bad.write_bytes(b"\x01" + b"\x7f" * (segments[good].bytes - 1))
    printed = kbackup("cat", "orders:0", "-a", str(tmp_path / "archive"), "--json", code=13)
    assert f"kbackup: {segments[good].key} at byte 1: another record offset" in printed.err
    if good:
        assert [record["offset"] for record in printed.records] == list(range(10))
    else:
        assert printed.json["error"]["exit_code"] == 13


def test_cat_without_a_place_names_the_topics(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("cat", "-a", root, code=2)
    assert "missing argument 'PLACE'" in printed.err
    assert "name one of clicks, orders, as in: kbackup cat clicks" in printed.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("find", "77", "--topic", "orders"), "kbackup find TEXT orders"),
        (("cat", "--topic", "orders"), "kbackup cat orders"),
        (("ls", "-t", "two words"), "kbackup ls 'two words'"),
    ],
)
def test_a_topic_as_an_option_is_shown_as_the_argument_that_it_is(
    root: str, kbackup: Kbackup, words: Sequence[str], line: str
) -> None:
    printed = kbackup(*words, "-a", root, code=2)
    assert "the topic is an argument, not an option" in printed.err
    assert f"hint: write: {line}\n" in printed.err
