"""The output of `cat`: JSON, text, bytes, and readers that leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup import cli
from kbackup.cli.common.records import as_format, as_hex, as_json, as_text
from kbackup.formats.record import Row
from kbackup.types import TopicPartition
from tests.support.archive_commands import Said
from tests.support.archives import T0
from tests.support.loaded_modules import loaded_modules
from tests.unit.cli.test_hostile import EVIL, harmless

pytestmark = pytest.mark.exhaustive(keep=3)

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
