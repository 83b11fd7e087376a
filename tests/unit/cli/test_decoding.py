"""Decoded records: MirrorMaker 2's internal topics, schema files, and `find --jq`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbackup.archive.models import TopicState
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.mirror.records import Checkpoint, Heartbeat, OffsetSync
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import commit_point, topic_state
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.plain_records import Plain, block_of
from tests.support.printed import Kbackup, Printed
from tests.support.schema_archive import make_schema_archive
from tests.unit.cli.test_output import harmless

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
        topics.append(topic_state(name, [(0, len(plain), segments)]))
        every += segments
    commit_point(archive, 1, topics=topics, segments=every)
    return str(folder)


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> str:
    return archive_of(tmp_path_factory.mktemp("mirrored") / "archive", TOPICS)


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
    mirrored: str, kbackup: Kbackup, topic: str, record: str, key: object, value: object
) -> None:
    document = kbackup("cat", topic, "--decode", "mm2", "-a", mirrored, "--json").json
    assert (document["key"], document["value"]) == (key, value)
    assert document["key_schema"] == document["value_schema"] == {"type": "MM2", "record": record}


def test_undecodable_values_are_shown_with_their_error(mirrored: str, kbackup: Kbackup) -> None:
    cat = ("cat", "A.checkpoints.internal", "--decode", "mm2", "-a", mirrored)
    printed = kbackup(*cat, "--json")
    assert [record["value"] is None for record in printed.records] == [False, True, False]
    assert printed.records[2]["value_error"] == "value of a checkpoint: unknown version 1"
    assert "1 of 2 values could not be decoded" in printed.err
    assert "unknown version 1" in kbackup(*cat, "--strict", code=1).err


def test_other_topics_stay_as_they_are(mirrored: str, kbackup: Kbackup) -> None:
    printed = kbackup("cat", "orders", "--strict", "--decode", "mm2", "-a", mirrored)
    assert printed.out.rstrip("\n").split("\t")[2:] == ["key", "value"]
    assert "decoded" not in printed.err


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
    root: str, args: list[str], offsets: list[int], kbackup: Kbackup
) -> None:
    assert list(map(int, kbackup("find", "--jq", *args, "-a", root, "-f", r"%o\n", "-q").lines)) == offsets


def test_an_expression_is_asked_about_records_with_the_text_alone(root: str, kbackup: Kbackup) -> None:
    """The expression is asked about no other records: it fails on none."""
    printed = kbackup("find", "STATE", "orders", "-i", "--jq", ".value.amount > 3", "-a", root, "-f", "%o")
    assert printed.out == "0"
    assert "failed for 2 records" in printed.err
    assert "orders:0:6: Cannot index array" in printed.err


def test_records_for_which_an_expression_fails_are_counted(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("find", "--jq", 'error("\x1b[2J\\n" + .topic)', "-a", root, "--json")
    assert printed.out == ""
    assert harmless(printed.err)
    assert "the expression failed for 8 records, which are not printed; the first: orders:0:0: " in printed.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        *(
            (["--jq", expression], "can't be used")
            for expression in (".a |", "nothing", '"', 'import "x" as x; 1', "\udcff", "...")
        ),
        ([], "no search text is given"),
        (["--jq", ".", "-i"], "need TEXT"),
        (["--jq", ".", "--in", "key"], "need TEXT"),
        (["--jq", ".", "ordres"], "did you mean orders?"),
    ],
)
def test_invalid_expressions_and_conflicting_arguments_are_refused(
    root: str, args: list[str], message: str, kbackup: Kbackup
) -> None:
    assert message in kbackup("find", *args, "-a", root, code=2).err


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("jq", ["find", "--jq", "."]),
        ("fastavro", ["cat", "orders", "--value-schema", "{avsc}"]),
        ("httpx2", ["cat", "orders", "--schema-registry", "http://127.0.0.1:1"]),
    ],
)
def test_without_its_library(
    root: str, module: str, args: list[str], tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.avsc").write_text('"string"')
    for name in (module, "kbackup.cli.find", "kbackup.schemas.avro", "kbackup.kafka.schema_registry"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    err = kbackup(*(arg.format(avsc=tmp_path / "a.avsc") for arg in args), "-a", root, code=2).err
    assert "not installed" in err
    assert "pip install 'kafka-kbackup[schemas]'" in err


def test_values_are_decoded_by_schema_files(tmp_path: Path, kbackup: Kbackup) -> None:
    """Values are printed as JSON, nulls are null, and what does not fit is shown as it is and counted."""
    (tmp_path / "a.avsc").write_text(
        '{"type": "record", "name": "A", "fields": [{"name": "name", "type": "string"}, {"name": "n", "type": "int"}]}'
    )
    records = [
        Plain(b"\x06one", b"\x08\x1b[2J\x02"),
        Plain(None, None),
        Plain(b"\x06two", b"\xff"),  # does not fit the schema
        Plain(b"x", b"\x02a\x04"),
    ]
    root = archive_of(tmp_path / "archive", {"orders": records})
    schemas = ["--value-schema", str(tmp_path / "a.avsc")]

    def run(*args: str, code: int = 0) -> Printed:
        printed = kbackup(*args, "-a", root, code=code)
        assert harmless(printed.out.replace("\t", ""))
        return printed

    printed = run("cat", "orders", *schemas, "--json")
    document = printed.records
    assert [(r["value"], r.get("value_schema"), "value_error" in r) for r in document] == [
        ({"name": "\x1b[2J", "n": 1}, {"type": "AVRO"}, False),
        (None, None, False),
        ({"base64": "/w=="}, None, True),
        ({"name": "a", "n": 2}, {"type": "AVRO"}, False),
    ]
    undecoded = "warning: 1 of 3 values could not be decoded and are used undecoded; the first: orders:0:2: not"
    assert undecoded in printed.err
    assert [line.split("\t")[3] for line in run("cat", "orders", *schemas).lines] == [
        r'{"name":"\u001b[2J","n":1}',
        "null",
        r"\xff",
        '{"name":"a","n":2}',
    ]
    assert run("cat", "orders:0:3", *schemas, "--format", "%k=%s %S").out == 'x={"name":"a","n":2} 3'
    printed = run("find", "--jq", ".value.n == 2", *schemas, "-f", "%o")
    assert printed.out == "3"
    assert "1 of 3 values could not be decoded" in printed.err
    printed = run("cat", "orders", *schemas, "--strict", code=1)
    assert len(printed.lines) == 2
    assert "the value of orders:0:2 can't be decoded: not AVRO by its schema" in printed.err
    run("find", "--jq", ".value.n == 2", *schemas, "--strict", code=1)
    for args, output in (
        (["--output", "hex", *schemas], "--output hex does not decode"),
        (["--strict"], "--strict without decoding has no effect"),
        (["--message", "A"], "--message A names a message without a schema"),
        (["--key-message", "A", *schemas], "--key-message A names a message without a schema"),
        (["--decode", "key"], "the restore point has no schemas, and no schema registry is named"),
        (["--value-schema", "gone.avsc"], "no such file"),
        (["--schema-registry", "http://me:word@here"], "holds credentials"),
    ):
        assert output in run("cat", "orders", *args, code=2).err


@pytest.fixture(scope="module")
def decodable(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("decodable") / "archive"
    make_schema_archive(open_store(str(folder)))
    return str(folder)


@pytest.mark.parametrize(
    ("args", "values", "err"),
    [
        (["cat", "orders:0:0-2", "--decode", "value"], [{"item": "pen", "count": 3}, None], ""),
        (["cat", "carts", "--decode", "value"], [{"item": "ink", "price": {"currency": "EUR", "cents": 250}}], ""),
        (["cat", "events", "--decode", "value"], [{"kind": "seen", "size": 7}], ""),
        (["cat", "orders:0:2", "--decode", "value"], [{"item": "ink", "count": 1, "note": "blue"}], ""),
        (
            ["cat", "orders:0:3", "--decode", "value"],
            ["\0\0\0\0cgone"],
            "orders:0:3: the restore point has no schema 99, and no schema registry is named",
        ),
        (["cat", "orders", "--decode", "key", "--restore-point", "1"], ["\0\0\0\0\2\x06pen\x06", None], ""),
        (["find", "--jq", '.value.item == "pen"', "--decode", "value"], [{"item": "pen", "count": 3}], ""),
    ],
)
def test_decoded_by_the_schemas_of_the_restore_point(
    decodable: str, args: list[str], values: list[object], err: str, kbackup: Kbackup
) -> None:
    """Without a registry; those of the newest restore point decode records of all of them."""
    printed = kbackup(*args, "-a", decodable, "--json")
    assert [record["value"] for record in printed.records] == values
    assert err in printed.err
    if not err and "find" not in args:
        assert "decoded" not in printed.err


def test_records_are_decoded_unasked_and_one_that_cannot_be_is_marked(decodable: str, kbackup: Kbackup) -> None:
    printed = kbackup("cat", "orders", "-a", decodable)
    assert [line.split("\t")[2:] for line in printed.lines] == [
        ["1", '{"item":"pen","count":3}'],
        ["2", "null"],
        ["3", '{"item":"ink","count":1,"note":"blue"}'],
        [
            r"\x00\x00\x00\x00\x01\xff",
            r"\x00\x00\x00\x00cgone",
            "(key not decoded: not AVRO by its schema: string index out of range)",
            "(value not decoded: the restore point has no schema 99)",
        ],
    ]
    assert "1 of 4 keys could not be decoded" in printed.err
    assert "1 of 3 values could not be decoded" in printed.err
    assert kbackup("cat", "plain", "-a", decodable).lines[0].split("\t")[2:] == ["key", "text"]


def test_a_script_tells_decoded_undecodable_and_archived_values_apart(decodable: str, kbackup: Kbackup) -> None:
    def fields(*args: str) -> list[tuple[str, ...]]:
        records = kbackup("cat", *args, "-a", decodable, "--json").records
        return [tuple(sorted(record.keys() & {"value_schema", "value_error"})) for record in records]

    assert fields("orders") == [("value_schema",), (), ("value_schema",), ("value_error",)]
    assert fields("plain") == [()]
    assert fields("orders", "--raw") == [(), (), (), ()]


def test_raw_shows_what_is_archived(decodable: str, kbackup: Kbackup) -> None:
    raw = kbackup("cat", "orders:0:0", "--raw", "-a", decodable)
    assert raw.lines[0].split("\t")[2:] == [r"\x00\x00\x00\x00\x01\x02", r"\x00\x00\x00\x00\x02\x06pen\x06"]
    assert raw.err == ""
    hexed = kbackup("cat", "orders:0:0", "--output", "hex", "-a", decodable)
    assert "00 00 00 00 02 06 70 65  6e 06" in hexed.out
    formatted = ("cat", "orders:0:0", "--format", "%v", "-a", decodable)
    assert kbackup(*formatted).out == '{"item":"pen","count":3}'
    assert kbackup(*formatted, "--raw").out == "\0\0\0\0\2\6pen\6"


def test_strict_ends_at_the_first_record_that_cannot_be_decoded(decodable: str, kbackup: Kbackup) -> None:
    printed = kbackup("cat", "orders", "--strict", "-a", decodable, code=1)
    assert len(printed.lines) == 3
    assert "the key of orders:0:3 can't be decoded" in printed.err
    raw = kbackup("cat", "orders", "--strict", "--raw", "-a", decodable, code=2)
    assert "--strict without decoding has no effect" in raw.err


def test_expressions_and_texts_find_records_that_are_decoded_unasked(decodable: str, kbackup: Kbackup) -> None:
    def offsets(*args: str) -> list[str]:
        return kbackup("find", *args, "-a", decodable, "--format", r"%t:%o\n", "-q").lines

    assert offsets("--jq", '.value.item? == "pen"') == ["orders:0"]
    assert offsets("--jq", '.value.item? == "pen"', "--raw") == []
    assert offsets("--jq", ".value_error != null") == ["orders:3"]
    assert offsets("ink") == ["carts:0", "orders:2"]
    printed = kbackup("find", "blue", "-a", decodable)
    assert '{"item":"ink","count":1,"note":"blue"}' in printed.out


def test_options_of_decoding_decode_what_they_name_alone(decodable: str, kbackup: Kbackup) -> None:
    record = kbackup("cat", "orders:0:0", "--decode", "value", "-a", decodable, "--json").json
    assert (record["key"], record["value"]) == ("\0\0\0\0\1\2", {"item": "pen", "count": 3})


@pytest.mark.parametrize("module", ["kbackup.schemas.avro", "kbackup.kafka.schema_registry"])
def test_without_the_libraries_records_are_shown_as_they_are(
    decodable: str, module: str, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    printed = kbackup("cat", "orders:0:0-2", "-a", decodable)
    assert printed.lines[0].split("\t")[3] == r"\x00\x00\x00\x00\x02\x06pen\x06"
    assert printed.err.count("keys and values are shown undecoded: decoding by schemas needs a library") == 1
    assert "pip install 'kafka-kbackup[schemas]'" in printed.err


def test_a_registry_is_asked_for_what_the_restore_point_lacks(decodable: str, kbackup: Kbackup) -> None:
    with ConfluentRegistry() as registry:
        for n in range(99):
            registry.register("a", {"schema": f'{{"title": "{n}"}}', "schemaType": "JSON"})
        asked = ("--decode", "value", "--schema-registry", registry.url, "-a", decodable)
        printed = kbackup("cat", "orders", *asked)
        assert "orders:0:3: not JSON by its schema" in printed.err
        assert [path for path in registry.asked if "ids" in path] == ["GET /schemas/ids/99"]
    args = ("--decode", "value", "--restore-point", "1", "-a", decodable, "--json")
    assert kbackup("cat", "orders:0:0", *args).json["value_schema"] == {"type": "AVRO", "id": 2}
