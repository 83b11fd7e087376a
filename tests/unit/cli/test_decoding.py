"""Decoded records: MirrorMaker 2's internal topics, schema files, and `find --jq`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive.models import TopicState
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.kafka.mirror_records import Checkpoint, Heartbeat, OffsetSync
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import commit_point, topic_state
from tests.support.plain_records import Plain, block_of
from tests.unit.cli.test_output import harmless

Said = pytest.CaptureFixture[str]

HEARTBEAT = Heartbeat("A", "B", 1700000000123)
CHECKPOINT = Checkpoint("grp-é", TopicPartition("A.topic1", 3), 1234, 1201, "md")
SYNC = OffsetSync(TopicPartition("topic1", 3), 1200, 1163)
TOPICS = {
    "heartbeats": [Plain(HEARTBEAT.key, HEARTBEAT.value)],
    "A.checkpoints.internal": [
        Plain(CHECKPOINT.key, CHECKPOINT.value),
        Plain(CHECKPOINT.key, None),
        Plain(CHECKPOINT.key, b"\0\1" + CHECKPOINT.value[2:]),
    ],
    "mm2-offset-syncs_B_internal": [Plain(SYNC.key, SYNC.value)],
    "orders": [Plain(b"key", b"value")],
}


def archive_of(folder: Path, records: Mapping[str, list[Plain]]) -> str:
    """Make an archive of one restore point; returns its address."""
    store = open_store(str(folder))
    archive = open_or_create(store)
    topics: list[TopicState] = []
    every: list[Segment] = []
    for name, plain in sorted(records.items()):
        with PartitionWriter(store, SegmentTarget(name, 1, 0, 1 << 20, "none")) as writer:
            segments = [*writer.append(block_of(plain)), *writer.finish()]
        topics.append(topic_state(name, 1, "present", [(0, len(plain), segments)]))
        every += segments
    commit_point(archive, 1, topics, every, [])
    return str(folder)


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> str:
    return archive_of(tmp_path_factory.mktemp("mirrored") / "archive", TOPICS)


def cat(mirrored: str, capsys: Said, *args: str, code: int = 0) -> tuple[list[str], str]:
    assert cli.main(["cat", *args, "--decode", "mm2", "-a", mirrored]) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err


@pytest.mark.parametrize(
    ("topic", "record", "key", "value"),
    [
        (
            "heartbeats",
            "heartbeat",
            {"sourceClusterAlias": "A", "targetClusterAlias": "B"},
            {"version": 0, "timestamp": 1700000000123},
        ),
        (
            "A.checkpoints.internal:0:0",
            "checkpoint",
            {"group": "grp-é", "topic": "A.topic1", "partition": 3},
            {"version": 0, "upstreamOffset": 1234, "offset": 1201, "metadata": "md"},
        ),
        (
            "mm2-offset-syncs_B_internal",
            "offset sync",
            {"topic": "topic1", "partition": 3},
            {"upstreamOffset": 1200, "offset": 1163},
        ),
    ],
)
def test_records_are_decoded_by_their_topics(
    mirrored: str, capsys: Said, topic: str, record: str, key: object, value: object
) -> None:
    (line,), _ = cat(mirrored, capsys, topic, "--json")
    told = json.loads(line)
    assert (told["key"], told["value"]) == (key, value)
    assert told["key_schema"] == told["value_schema"] == {"type": "MM2", "record": record}


def test_undecodable_values_are_shown_with_their_error(mirrored: str, capsys: Said) -> None:
    lines, err = cat(mirrored, capsys, "A.checkpoints.internal", "--json")
    assert [json.loads(line)["value"] is None for line in lines] == [False, True, False]
    assert json.loads(lines[2])["value_error"] == "value of a checkpoint: unknown version 1"
    assert "1 of 2 values could not be decoded" in err
    assert "unknown version 1" in cat(mirrored, capsys, "A.checkpoints.internal", "--strict", code=1)[1]


def test_other_topics_stay_as_they_are(mirrored: str, capsys: Said) -> None:
    (line,), err = cat(mirrored, capsys, "orders", "--strict")
    assert line.split("\t")[2:] == ["key", "value"]
    assert "decoded" not in err


# `find --jq`: what an expression sees of records, and what becomes of those that it fails on.


RECORDS = [
    Plain(b"17", b'{"state": "failed", "amount": 12.50, "id": 9007199254740993}'),
    Plain(b"customer-18", b'{"state": "done", "amount": 3}', headers=((b"trace", b"a"), (b"trace", None))),
    Plain(b"\xff\xfe", b"no JSON"),
    Plain(None, None),
    Plain(b"", b"\xff\x00", timestamp=1_800_000_000_000),
    Plain(b"deep", b"[" * 5_000 + b"]" * 5_000),
    Plain(b"list", b' [1, {"state": "failed\\u001b[2J"}] '),
    Plain(b"half", b'{"state": "\\ud800"}'),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return archive_of(tmp_path_factory.mktemp("made") / "archive", {"orders": RECORDS})


@pytest.mark.parametrize(
    ("args", "offsets"),
    [
        (['.value | objects | .state == "failed"'], [0]),
        ([".value | objects | .amount > 3"], [0]),
        ([".value | objects | .amount"], [0, 1]),
        (['.key == "17"'], [0]),
        (['.key | strings | startswith("customer")'], [1]),
        ([".key.base64?"], [2]),
        ([".value == null"], [3]),
        (['.value == "no JSON"'], [2]),
        (['.value == {base64: "/wA="}'], [4]),
        (['any(.headers[]; .key == "trace" and .value == "a")'], [1]),
        ([".timestamp >= 1800000000000"], [4]),
        (['.topic == "orders" and .partition == 0 and .offset < 2'], [0, 1]),
        (["false, null, .offset == 1"], [1]),
        (["empty"], []),
        ([".value[1]?.state?"], [6]),
        (['.value | tojson | contains("9007199254740993")'], [0]),
        (["true", "--limit", "2"], [0, 1]),
        (["true", "orders:0:2-4"], [2, 3]),
        (["true", "--from-time", "1800000000000"], [4]),
    ],
)
def test_expressions_select_records_by_their_fields(
    root: str, args: list[str], offsets: list[int], capsys: Said
) -> None:
    assert cli.main(["find", "--jq", *args, "-a", root, "-f", r"%o\n", "-q"]) == 0
    assert [int(line) for line in capsys.readouterr().out.split()] == offsets


def test_text_narrows_down(root: str, capsys: Said) -> None:
    """The expression is asked about no other records: it fails on none."""
    assert cli.main(["find", "STATE", "orders", "-i", "--jq", ".value.amount > 3", "-a", root, "-f", "%o"]) == 0
    out, err = capsys.readouterr()
    assert out == "0"
    assert "failed for 2 records" in err
    assert "orders:0:6: Cannot index array" in err


def test_failures_are_told(root: str, capsys: Said) -> None:
    assert cli.main(["find", "--jq", 'error("\x1b[2J\\n" + .topic)', "-a", root, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert harmless(err)
    assert "the expression failed for 8 records, which are not printed; the first: orders:0:0: " in err


@pytest.mark.parametrize("expression", [".a |", "nothing", '"', 'import "x" as x; 1', "\udcff", "." * 3])
def test_invalid_expressions_are_refused(root: str, expression: str, capsys: Said) -> None:
    assert cli.main(["find", "--jq", expression, "-a", root]) == 2
    assert "can't be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no search text is given"),
        (["--jq", ".", "-i"], "need TEXT"),
        (["--jq", ".", "--in", "key"], "need TEXT"),
        (["--jq", ".", "ordres"], "did you mean orders?"),
    ],
)
def test_conflicting_arguments_are_refused(root: str, args: list[str], message: str, capsys: Said) -> None:
    assert cli.main(["find", *args, "-a", root]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("jq", ["find", "--jq", "."]),
        ("fastavro", ["cat", "orders", "--value-schema", "{avsc}"]),
        ("confluent_kafka.schema_registry", ["cat", "orders", "--schema-registry", "http://127.0.0.1:1"]),
    ],
)
def test_without_its_library(
    root: str, module: str, args: list[str], tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.avsc").write_text('"string"')
    for name in (module, "kbackup.cli.find", "kbackup.schemas.avro", "kbackup.kafka.schema_registry"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    given = [arg.format(avsc=tmp_path / "a.avsc") if arg == "{avsc}" else arg for arg in args]
    assert cli.main([*given, "-a", root]) == 2
    err = capsys.readouterr().err
    assert "not installed" in err
    assert "pip install 'kafka-kbackup[schemas]'" in err


def archive_of_avro(folder: Path) -> str:
    """Make an archive of four records beside the schema `a.avsc`; one value does not fit the schema."""
    (folder / "a.avsc").write_text(
        '{"type": "record", "name": "A", "fields": [{"name": "name", "type": "string"}, {"name": "n", "type": "int"}]}'
    )
    records = [
        Plain(b"\x06one", b"\x08\x1b[2J\x02"),
        Plain(None, None),
        Plain(b"\x06two", b"\xff"),
        Plain(b"x", b"\x02a\x04"),
    ]
    return archive_of(folder / "archive", {"orders": records})


def test_decoded_by_files(tmp_path: Path, capsys: Said) -> None:
    """Values are printed as JSON, nulls are null, and what does not fit is shown as it is and counted."""
    root = archive_of_avro(tmp_path)
    schemas = ["--value-schema", str(tmp_path / "a.avsc")]

    def run(*args: str, code: int = 0) -> tuple[str, str]:
        assert cli.main([*args, "-a", root]) == code
        out, err = capsys.readouterr()
        assert harmless(out.replace("\t", ""))
        return out, err

    out, err = run("cat", "orders", *schemas, "--json")
    document = [json.loads(line) for line in out.splitlines()]
    assert [r["value"] for r in document] == [
        {"name": "\x1b[2J", "n": 1},
        None,
        {"base64": "/w=="},
        {"name": "a", "n": 2},
    ]
    assert [(r.get("value_schema"), "value_error" in r) for r in document] == [
        ({"type": "AVRO"}, False),
        (None, False),
        (None, True),
        ({"type": "AVRO"}, False),
    ]
    assert "warning: 1 of 3 values could not be decoded and are used undecoded; the first: orders:0:2: not" in err
    out, _ = run("cat", "orders", *schemas)
    assert [line.split("\t")[3] for line in out.splitlines()] == [
        r'{"name":"\u001b[2J","n":1}',
        "null",
        r"\xff",
        '{"name":"a","n":2}',
    ]
    out, _ = run("cat", "orders:0:3", *schemas, "--format", "%k=%s %S")
    assert out == 'x={"name":"a","n":2} 3'
    out, err = run("find", "--jq", ".value.n == 2", *schemas, "-f", "%o")
    assert out == "3"
    assert "1 of 3 values could not be decoded" in err
    out, err = run("cat", "orders", *schemas, "--strict", code=1)
    assert len(out.splitlines()) == 2
    assert "the value of orders:0:2 can't be decoded: not AVRO by its schema" in err
    run("find", "--jq", ".value.n == 2", *schemas, "--strict", code=1)
    for args, output in (
        (["--output", "hex", *schemas], "--output hex does not decode"),
        (["--strict"], "--strict without decoding has no effect"),
        (["--message", "A"], "--message A names a message without a schema"),
        (["--key-message", "A", *schemas], "--key-message A names a message without a schema"),
        (["--decode", "key"], "no schema registry is named"),
        (["--value-schema", "gone.avsc"], "no such file"),
        (["--schema-registry", "http://me:word@here"], "holds credentials"),
    ):
        assert output in run("cat", "orders", *args, code=2)[1]
