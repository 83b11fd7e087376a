"""Keys and values by their schemas on pages of records and of search results."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass, field
from unittest import mock

import fastavro
import pytest

from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.errors import UndecodableError, UnreachableError, UsageError
from kbackup.jobs.decoding import PARTS, Decoding
from kbackup.schemas.base import EXTRA, Schema
from kbackup.schemas.decoder import HEADERS, ByRegistry
from kbackup.store.base import Store
from kbackup.web.decoding import MAX_BYTES, PAUSE, SECONDS, FieldDecoder
from tests.support.archives import commit_point, topic_state
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.support.rich_archive import SCRIPT
from tests.support.visits import text, visit

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "note", "type": "string"}, {"name": "n", "type": "long"}],
}
PROTO = 'syntax = "proto3"; message Order { string note = 1; }'
SCHEMAS = {1: Schema("AVRO", json.dumps(AVRO)), 2: Schema("PROTOBUF", PROTO), 3: Schema("JSON", '{"type": "object"}')}


def avro(note: str) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), {"note": note, "n": 7})
    return stream.getvalue()


def framed(number: int, rest: bytes) -> bytes:
    return b"\0" + struct.pack(">I", number) + rest


PLAIN = [
    Plain(b"key", framed(1, avro(SCRIPT))),
    Plain(b"key", framed(2, b"\0" + b"\x0a\x05hello")),
    Plain(b"key", framed(3, b'{"note": "as JSON"}')),
    Plain(b"key", framed(9, b"no such schema")),
    Plain(b"key", b"bare"),
    Plain(None, None),
    Plain(b"key", framed(1, b"x" * MAX_BYTES)),
]


@dataclass
class Registry:
    """A registry of `SCHEMAS`; `error` is its answer to every question, `delay` its seconds for each."""

    error: Exception | None = None
    delay: float = 0.0
    asked: list[int | str] = field(default_factory=list)

    def schema(self, schema_id: int | str) -> Schema:
        self.asked.append(schema_id)
        if self.error is not None:
            raise self.error
        if schema_id not in SCHEMAS:
            raise UndecodableError(f"the registry has no schema {schema_id}")
        return SCHEMAS[int(schema_id)]

    def decoder(self, now: list[float]) -> FieldDecoder:
        return FieldDecoder(
            lambda: Decoding({part: ByRegistry(Waiting(self, now), HEADERS[part]) for part in PARTS}, mm2=True),
            lambda: now[0],
        )


@dataclass
class Waiting:
    """A registry whose delay passes on a clock that nobody waits for."""

    registry: Registry
    now: list[float]

    def schema(self, schema_id: int | str) -> Schema:
        self.now[0] += self.registry.delay
        return self.registry.schema(schema_id)


@pytest.fixture(scope="module")
def framed_store() -> Store:
    store = MemoryStore()
    with PartitionWriter(store, SegmentTarget("t", 1, 0, 1 << 24, "none")) as writer:
        segments = [*writer.append(block_of(PLAIN)), *writer.finish()]
    topic = topic_state("t", 1, "present", [(0, len(PLAIN), segments)])
    commit_point(open_or_create(store), 1, [topic], segments, [])
    return store


def test_records_by_their_schemas(framed_store: Store) -> None:
    registry = Registry()
    client = visit(framed_store, decoder=registry.decoder([0.0]))
    one = client.get("/topics/t/0/records/0?view=decoded").text
    assert '"note"' in text(one)
    assert SCRIPT in text(one)
    assert one.count("<script") == 2, "the page's own"
    assert "decoded: AVRO, schema 1" in text(one)
    assert "not decoded: it names no schema" in text(one), "of the key"
    for offset, shown in (
        (1, "hello"),
        (2, "as JSON"),
        (3, "the registry has no schema 9"),
        (6, "longer than 1,048,576"),
    ):
        assert shown in text(client.get(f"/topics/t/0/records/{offset}?view=decoded").text)
    lines = client.get("/topics/t/0/records?view=decoded").text
    assert f'{{"note": "{SCRIPT}", "n": 7}}' in text(lines)
    assert 'title="decoded: PROTOBUF, schema 2"' in lines
    assert 'records/1?view=decoded"' in lines, "a decoded list leads to decoded records"
    assert sorted(registry.asked, key=str) == [1, 2, 3, 9], "each once"
    assert "Not decoded" not in text(lines)


def test_search_results_by_their_schemas(framed_store: Store) -> None:
    client = visit(framed_store, decoder=Registry().decoder([0.0]))
    raw = text(client.get("/search?text=hello").text)
    assert '{"note": "hello"}' not in raw
    assert '{"note": "hello"}' in text(client.get("/search?text=hello&decode=1").text)


def test_nothing_is_decoded_unasked(framed_store: Store) -> None:
    registry = Registry()
    client = visit(framed_store, decoder=registry.decoder([0.0]))
    for address in ("/topics/t/0/records", "/topics/t/0/records/0", "/search?text=hello"):
        assert client.get(address).status_code == 200
    assert registry.asked == []


@pytest.mark.parametrize(
    "address", ["/topics/t/0/records?view=decoded", "/topics/t/0/records/4?view=decoded", "/search?text=bare&decode=1"]
)
def test_a_page_without_a_registry_says_so(framed_store: Store, address: str) -> None:
    def make() -> Decoding:
        raise UsageError("no schema registry is named", "give --schema-registry")

    shown = visit(framed_store, decoder=FieldDecoder(make)).get(address)
    assert shown.status_code == 200
    assert "Not decoded: no schema registry is named: give --schema-registry" in text(shown.text)
    assert "bare" in text(shown.text)


def test_a_page_without_the_libraries_says_so(framed_store: Store) -> None:
    client = visit(framed_store, decoder=Registry().decoder([0.0]))
    with mock.patch.dict("sys.modules", {"kbackup.schemas.avro": None}):
        shown = text(client.get("/topics/t/0/records/0?view=decoded").text)
    assert "Not decoded: decoding by schemas needs a library that is not installed" in shown
    assert EXTRA in shown


def test_a_registry_that_does_not_answer_is_left_alone_for_a_while(framed_store: Store) -> None:
    now = [0.0]
    registry = Registry(UnreachableError("the registry can't be reached", "check the URL"))
    client = visit(framed_store, decoder=registry.decoder(now))
    for _ in range(3):
        shown = text(client.get("/topics/t/0/records?view=decoded").text)
        assert "Not decoded: the registry can't be reached: check the URL" in shown
        assert "bare" in shown
    assert len(registry.asked) == 1
    registry.error, now[0] = None, PAUSE
    assert "hello" in text(client.get("/topics/t/0/records?view=decoded").text)


@pytest.mark.parametrize(("delay", "decoded"), [(SECONDS / 2, 3), (SECONDS, 2), (SECONDS + 1, 1)])
def test_a_page_decodes_until_its_deadline(framed_store: Store, delay: float, decoded: int) -> None:
    """The records after it are shown undecoded, with the reason; another page begins anew."""
    registry = Registry(delay=delay)
    client = visit(framed_store, decoder=registry.decoder([0.0]))
    html = client.get("/topics/t/0/records?view=decoded").text
    assert html.count('title="decoded: ') == decoded, "records decoded before the deadline"
    assert "not decoded: the records before took more than 5 seconds" in html
    assert "bare" in text(html)
    assert len(registry.asked) == decoded, "no schema is asked for after the deadline"
    later = client.get("/topics/t/0/records?view=decoded").text
    assert later.count('title="decoded: ') == min(decoded + 1, 3), "of another page, which knows more schemas"
