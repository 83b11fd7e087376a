"""Pages of records, and keys and values as they are shown."""

from __future__ import annotations

import io
import json
import re
import struct
import tracemalloc
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from unittest import mock

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.schemas import archived_schemas
from kbackup.errors import UndecodableError, UnreachableError, UsageError
from kbackup.jobs.decoding import PARTS, Decoding
from kbackup.schemas.base import EXTRA, RegistryOptions, Schema
from kbackup.schemas.decoder import HEADERS, ByRegistry
from kbackup.store.base import Store
from kbackup.util.text import kbackup_command
from kbackup.web import render
from kbackup.web.decoding import MAX_BYTES, PAUSE, SECONDS, FieldDecoder
from kbackup.web.render import LEVELS, VIEWS, View, environment, indented, is_json, line, name, shown
from tests.support.archives import topic_archive
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.support.rich_archive import LONG, ODD, SCRIPT
from tests.support.schema_archive import make_schema_archive
from tests.support.visits import links, text, visit


def test_records_page_by_page(rich: Store) -> None:
    client = visit(rich)
    pattern = re.compile(r'records/(\d+)">')
    first = client.get("/topics/orders/1/records?n=30").text
    assert pattern.findall(first) == [str(n) for n in range(30)]
    (later,) = {link for link in links(first) if "offset=30" in link}
    assert pattern.findall(client.get(later).text)[:1] == ["30"]
    last = client.get("/topics/orders/1/records?last=1&n=30").text
    assert pattern.findall(last) == [str(n) for n in [*range(110, 120), *range(160, 180)]], (
        "across nights without a backup"
    )
    (earlier,) = {link for link in links(last) if "before=110" in link}
    back = pattern.findall(client.get(earlier).text)
    assert back == [str(n) for n in range(80, 110)]


def test_a_jump_leads_to_the_record_or_the_next_one_there_is(rich: Store) -> None:
    client = visit(rich)
    where = "/topics/orders/1/records"
    assert 'id="found"' in client.get(f"{where}?offset=1,05").text
    by_time = client.get(f"{where}?time=2026-10-02T03:00:00Z&n=5")
    assert by_time.status_code == 303
    assert by_time.headers["location"].startswith(f"{where}?offset=41&n=5")
    late = client.get(f"{where}?time=2100-01-01T00:00:00Z")
    assert "No record has a time of" in text(late.text)
    over = client.get(f"{where}?offset=99999999999999999999")
    assert over.status_code == 400
    assert "There are no records here" in text(client.get(f"{where}?offset=9223372036854775807").text)
    steps = [client.get(f"{where}/119?go={way}").headers["location"] for way in ("next", "previous")]
    assert steps == [f"{where}/160", f"{where}/118"]


def test_a_record_in_every_form(rich: Store) -> None:
    client = visit(rich)
    for offset, record in enumerate(ODD):
        for view in ("auto", "text", "json", "hex"):
            assert client.get(f"/topics/odd/0/records/{offset}?view={view}").status_code == 200
        for part, data in (("key", record.key), ("value", record.value)):
            got = client.get(f"/topics/odd/0/records/{offset}/{part}")
            if data is None:
                assert got.status_code == 404
                continue
            assert got.content == data
            assert got.headers["content-type"] == "application/octet-stream"
            assert got.headers["content-disposition"] == f'attachment; filename="odd-0-{offset}-{part}.bin"'
            assert got.headers["x-content-type-options"] == "nosniff"
    assert client.get("/topics/odd/0/records/0/headers/1").content == b"\0\x01"
    assert client.get("/topics/odd/0/records/0/headers/2").status_code == 404
    long = client.get("/topics/odd/0/records/5").text
    assert "the first 64.0 KiB of 97.7 KiB" in text(long)
    assert len(long) < len(LONG)
    json = unescape(re.sub("<[^>]+>", "", client.get("/topics/odd/0/records/6").text))
    assert '"big": 12345678901234567890123' in json
    assert '"price": 1.10' in json


def test_pages_stay_small_whatever_headers_there_are() -> None:
    """A message of one MB has room for some hundred thousand, or for one whose name is as long."""
    headers = tuple((b"h%d" % n, b"x") for n in range(2000))
    plain = [Plain(b"key", b"value", headers=headers), Plain(b"key", b"value", headers=((b"n" * 5000, b"x"),))]
    store = MemoryStore()
    topic_archive(store, "busy", block_of(plain))
    client = visit(store)
    some = client.get("/topics/busy/0/records?view=auto").text
    assert "header h19 " in text(some)
    assert "header h20 " not in text(some)
    assert "and 1,980 more" in text(some)
    assert "2,000" in text(client.get("/topics/busy/0/records").text)
    one = client.get("/topics/busy/0/records/0").text
    assert "h199 " in text(one)
    assert "h200 " not in text(one)
    assert "headers 2,000 " in text(one)
    assert "and 1,800 more" in text(one)
    assert client.get("/topics/busy/0/records/0/headers/1999").content == b"x"
    long = client.get("/topics/busy/0/records/1").text
    assert ">" + "n" * 1024 + "\N{HORIZONTAL ELLIPSIS}<" in long


# Keys and values as they are shown.


def plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


@given(st.binary(max_size=300) | st.text().map(str.encode), st.sampled_from(VIEWS), st.integers(16, 200))
def test_any_value_is_shown_escaped_and_no_longer_than_asked(data: bytes, view: View, most: int) -> None:
    """Escaped, on lines that are its own, and not longer than asked for."""
    value = shown(data, view, most)
    assert value.size == len(data)
    assert value.cut == (value.shown < len(data))
    assert value.shown <= max(most, 16)
    assert set(re.findall(r"<[^>]*>", value.content)) <= {"</span>"} | {
        f'<span class="j-{kind}">' for kind in ("name", "text", "number", "word")
    }
    assert all(sign.isprintable() or sign == "\n" for sign in plain(value.content))
    assert line(data).content.isprintable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).filter(lambda value: isinstance(value, list | dict))


@given(VALUES)
def test_json_stays_what_it_is(value: object) -> None:
    found = shown(json.dumps(value).encode())
    assert found.kind == "json"
    assert json.loads(plain(found.content)) == value


@pytest.mark.parametrize(
    ("data", "view", "kind", "content"),
    [
        (None, "auto", "null", "null"),
        (b"", "hex", "empty", "empty"),
        (b"1", "auto", "text", "1"),
        (b'{"a":1', "json", "text", '{"a":1'),
        (b"[" * 3000, "json", "text", "[" * 3000),
        (b"\xff", "text", "text", "\\xff"),
        (b"\xff", "auto", "hex", "00000000  ff                                                |.|"),
        ("é".encode(), "auto", "text", "é"),
    ],
)
def test_data_is_shown_as_what_it_is_read_as(data: bytes | None, view: View, kind: str, content: str) -> None:
    found = shown(data, view)
    assert (found.kind, plain(found.content)) == (kind, content)


def test_a_character_is_not_cut_in_two() -> None:
    found = shown("é".encode() * 10, "auto", 5)
    assert (found.kind, found.content, found.shown) == ("text", "éé", 5)


def test_brackets_in_each_other_do_not_blow_up() -> None:
    deep = b"[" * 400 + b"1," * 20_000 + b"1" + b"]" * 400
    assert len(shown(deep).content) < 12 * render.WHOLE


@pytest.mark.parametrize("text", [" a", "a ", "a  b"])
def test_blanks_of_names_are_seen(text: str) -> None:
    assert name(text) == f'<span class="blanks">{text}</span>'
    assert name("a b") == "a b"


def test_copied_commands_and_names_hold_no_controls() -> None:
    macros: Any = environment().get_template("macros.html").module
    command = kbackup_command("find", "--group", "g\x1b[2J\nrm -rf ~")
    html = unescape(str(macros.command(command)))
    assert f'data-copy="{command}"' in html, "what a shell reads as the same name"
    assert command == r"kbackup find --group $'g\033[2J\012rm -rf ~'"
    assert "\x1b" not in str(macros.command("kbackup find\x1b[2J"))
    title = str(macros.copy("orders\x1b[2J\nrm -rf ~\u202e"))
    assert r"orders\x1b[2J\nrm -rf ~\u202e" in title
    assert "\x1b" not in title


# JSON in lines: the same value, in pieces that do not grow with it.


@given(VALUES, st.booleans(), st.sampled_from([None, 1, 7]))
def test_the_layout_is_that_of_msgspec(value: object, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    laid_out = "".join(indented(data))
    assert all(line.isprintable() for line in laid_out.split("\n"))
    assert json.loads(laid_out) == value
    assert laid_out.isascii() == data.isascii() or not ascii_only
    if data.decode().replace("\n", "").isprintable():
        assert laid_out == msgspec.json.format(data, indent=2).decode() + "\n"


def test_characters_that_can_not_be_shown_are_escaped() -> None:
    (laid_out,) = indented('["\u202eturned\x7f \U000e0001"]'.encode())
    assert laid_out == '[\n  "\\u202eturned\\u007f \\udb40\\udc01"\n]\n'


def test_numbers_stay_as_they_are_written() -> None:
    data = b'{"big":12345678901234567890123,"price":1.10,"e":1E400}'
    assert "".join(indented(data)) == '{\n  "big": 12345678901234567890123,\n  "price": 1.10,\n  "e": 1E400\n}\n'


def test_deep_brackets_do_not_multiply_the_text() -> None:
    deep = b"[" * 900 + b"1," * 1000 + b"1" + b"]" * 900
    assert max(len(line) for line in "".join(indented(deep)).split("\n")) == 2 * LEVELS + 2


@pytest.mark.parametrize(
    "data", [b"", b"1", b"null", b'"text"', b"[1", b"[1] 2", b'["\xff"]', b"[" * 100_000, b"[01]", b"{1:2}"]
)
def test_other_data_is_not_laid_out(data: bytes) -> None:
    assert not is_json(data)


def test_memory_does_not_grow_with_the_value() -> None:
    data = b'["' + b"x\\n" * (4 << 20) + b'",' + b"1," * 20_000 + b"1]"
    tracemalloc.start()
    try:
        assert is_json(data)
        assert sum(map(len, indented(data))) > len(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_long_value_is_shown_whole() -> None:
    """Its page shows the beginning in lines, and leads to all of it."""
    value = json.dumps([{"number": n, "text": "<b>\u202e" * 20} for n in range(2000)], ensure_ascii=False).encode()
    store = MemoryStore()
    plain = [Plain(b"key", value, headers=((b"long", value), (b"text", b"no JSON")))]
    topic_archive(store, "orders", block_of(plain))
    client = visit(store)
    page = client.get("/topics/orders/0/records/0")
    assert re.search(r"the first 6[34]\.. KiB of", text(page.text))
    assert len(page.text) < len(value)
    for part in ("value", "headers/0"):
        (link,) = {each for each in links(page.text) if each.endswith(f"/{part}?view=json")}
        answer = client.get(link)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json() == json.loads(value)
        assert answer.text.startswith('[\n  {\n    "number": 0,\n    "text": "<b>\\u202e')
    for part in ("key", "headers/1"):
        refused = client.get(f"/topics/orders/0/records/0/{part}?view=json")
        assert refused.status_code == 404
        assert "this field of the record is not JSON" in text(refused.text)


# Keys and values by their schemas on pages of records and of search results.


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
    """A registry of `SCHEMAS`; `error` is its answer to every question. Each takes `delay` seconds, on a clock that
    nobody waits for."""

    error: Exception | None = None
    delay: float = 0.0
    asked: list[int | str] = field(default_factory=list)
    now: list[float] = field(default_factory=lambda: [0.0])

    def schema(self, schema_id: int | str) -> Schema:
        self.now[0] += self.delay
        self.asked.append(schema_id)
        if self.error is not None:
            raise self.error
        if schema_id not in SCHEMAS:
            raise UndecodableError(f"the registry has no schema {schema_id}")
        return SCHEMAS[int(schema_id)]

    def decoder(self) -> FieldDecoder:
        return FieldDecoder(
            lambda _: Decoding({part: ByRegistry(self, HEADERS[part]) for part in PARTS}, mm2=True), lambda: self.now[0]
        )


@pytest.fixture(scope="module")
def framed_store() -> Store:
    store = MemoryStore()
    topic_archive(store, "t", block_of(PLAIN))
    return store


def test_records_by_their_schemas(framed_store: Store) -> None:
    registry = Registry()
    client = visit(framed_store, decoder=registry.decoder())
    one = client.get("/topics/t/0/records/0?view=decoded").text
    assert '"note"' in text(one)
    assert SCRIPT in text(one)
    assert one.count("<script") == 2, "the page's own"
    assert "decoded: AVRO, schema 1" in text(one)
    assert "not decoded: it names no schema" in text(one), "of the key"
    expected = {1: "hello", 2: "as JSON", 3: "the registry has no schema 9", 6: "longer than 1,048,576"}
    for offset, words in expected.items():
        assert words in text(client.get(f"/topics/t/0/records/{offset}?view=decoded").text)
    lines = client.get("/topics/t/0/records?view=decoded").text
    assert f'{{"note": "{SCRIPT}", "n": 7}}' in text(lines)
    assert 'title="decoded: PROTOBUF, schema 2"' in lines
    assert 'records/1?view=decoded"' in lines, "a decoded list leads to decoded records"
    assert sorted(registry.asked, key=str) == [1, 2, 3, 9], "each once"
    assert "Not decoded" not in text(lines)


def test_search_results_by_their_schemas(framed_store: Store) -> None:
    client = visit(framed_store, decoder=Registry().decoder())
    raw = text(client.get("/search?text=hello").text)
    assert '{"note": "hello"}' not in raw
    assert '{"note": "hello"}' in text(client.get("/search?text=hello&decode=1").text)


def test_nothing_is_decoded_unasked(framed_store: Store) -> None:
    registry = Registry()
    client = visit(framed_store, decoder=registry.decoder())
    for address in ("/topics/t/0/records", "/topics/t/0/records/0", "/search?text=hello"):
        assert client.get(address).status_code == 200
    assert registry.asked == []


@pytest.fixture(scope="module")
def decodable() -> Store:
    store = MemoryStore()
    make_schema_archive(store)
    return store


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/topics/carts/0/records", '{"item": "ink", "price": {"currency": "EUR", "cents": 250}}'),
        ("/topics/carts/0/records/0", "decoded: PROTOBUF, schema 5"),
        ("/topics/carts/0/records/0?view=auto", "anna"),
        ("/topics/events/0/records?point=1", '{"kind": "seen", "size": 7}'),
        ("/topics/orders/0/records?point=1", '{"item": "pen", "count": 3}'),
        # an id of the newest restore point is unknown: a registry would be asked
        ("/topics/orders/0/records?view=decoded", '{"item": "ink", "count": 1, "note": "blue"}'),
        ("/search?text=ink&decode=1", '{"item": "ink", "count": 1, "note": "blue"}'),
    ],
)
def test_a_restore_point_with_schemas_needs_no_registry(decodable: Store, address: str, words: str) -> None:
    decoder = FieldDecoder(lambda schemas: Decoding(archived_schemas(schemas, RegistryOptions()).decoders(), mm2=True))
    assert words in text(visit(decodable, decoder=decoder).get(address).text)


def without_registry(schemas: object) -> Decoding:
    raise AssertionError("nobody has asked to decode by a registry")


def test_records_are_decoded_unasked_and_one_that_cannot_be_is_marked(decodable: Store) -> None:
    client = visit(decodable, decoder=FieldDecoder(without_registry))
    lines = client.get("/topics/orders/0/records").text
    assert '{"item": "ink", "count": 1, "note": "blue"}' in text(lines)
    assert lines.count('title="not decoded: the restore point has no schema 99">not decoded</span>') == 1
    assert 'records/3"' in lines, "a link does not ask for what nobody has asked for"
    one = text(client.get("/topics/orders/0/records/3").text)
    assert "not decoded: the restore point has no schema 99" in one
    plain = text(client.get("/topics/plain/0/records").text)
    assert "text" in plain
    assert "not decoded" not in plain
    assert "00 00 00 00 02 06" in text(client.get("/topics/orders/0/records?view=hex").text)


def test_a_search_shows_matches_decoded_unless_bytes_are_asked_for(decodable: Store) -> None:
    client = visit(decodable, decoder=FieldDecoder(without_registry))
    assert '"count": 1' in text(client.get("/search?text=ink&where=orders").text)
    assert '"count": 1' not in text(client.get("/search?text=ink&where=orders&raw=1").text)
    assert '"note": "blue"' in text(client.get("/search?jq=.value.item==%22ink%22&where=orders").text)
    downloaded = client.get("/search.ndjson?text=ink&where=orders").text
    assert '"value":{"item":"ink","count":1,"note":"blue"}' in downloaded
    raw = client.get("/search.ndjson?text=ink&where=orders&raw=1").text
    assert "value_schema" not in raw


def test_a_page_that_nobody_asked_to_decode_says_which_library_it_lacks(decodable: Store) -> None:
    client = visit(decodable, decoder=FieldDecoder(without_registry))
    with mock.patch.dict("sys.modules", {"kbackup.schemas.avro": None}):
        shown = text(client.get("/topics/orders/0/records").text)
    assert "Not decoded: decoding by schemas needs a library that is not installed" in shown


@pytest.mark.parametrize(
    "address", ["/topics/t/0/records?view=decoded", "/topics/t/0/records/4?view=decoded", "/search?text=bare&decode=1"]
)
def test_a_page_without_a_registry_says_so(framed_store: Store, address: str) -> None:
    def make(schemas: object) -> Decoding:
        raise UsageError("no schema registry is named", "give --schema-registry")

    shown = visit(framed_store, decoder=FieldDecoder(make)).get(address)
    assert shown.status_code == 200
    assert "Not decoded: no schema registry is named: give --schema-registry" in text(shown.text)
    assert "bare" in text(shown.text)


def test_a_page_without_the_libraries_says_so(framed_store: Store) -> None:
    client = visit(framed_store, decoder=Registry().decoder())
    with mock.patch.dict("sys.modules", {"kbackup.schemas.avro": None}):
        shown = text(client.get("/topics/t/0/records/0?view=decoded").text)
    assert "Not decoded: decoding by schemas needs a library that is not installed" in shown
    assert EXTRA in shown


def test_a_registry_that_does_not_answer_is_left_alone_for_a_while(framed_store: Store) -> None:
    registry = Registry(UnreachableError("the registry can't be reached", "check the URL"))
    client = visit(framed_store, decoder=registry.decoder())
    for _ in range(3):
        shown = text(client.get("/topics/t/0/records?view=decoded").text)
        assert "Not decoded: the registry can't be reached: check the URL" in shown
        assert "bare" in shown
    assert len(registry.asked) == 1
    registry.error, registry.now[0] = None, PAUSE
    assert "hello" in text(client.get("/topics/t/0/records?view=decoded").text)


@pytest.mark.parametrize(("delay", "decoded"), [(SECONDS / 2, 3), (SECONDS, 2), (SECONDS + 1, 1)])
def test_a_page_decodes_until_its_deadline(framed_store: Store, delay: float, decoded: int) -> None:
    """The records after it are shown undecoded, with the reason; another page begins anew."""
    registry = Registry(delay=delay)
    client = visit(framed_store, decoder=registry.decoder())
    html = client.get("/topics/t/0/records?view=decoded").text
    assert html.count('title="decoded: ') == decoded, "records decoded before the deadline"
    assert "not decoded: the records before took more than 5 seconds" in html
    assert "bare" in text(html)
    assert len(registry.asked) == decoded, "no schema is asked for after the deadline"
    later = client.get("/topics/t/0/records?view=decoded").text
    assert later.count('title="decoded: ') == min(decoded + 1, 3), "of another page, which knows more schemas"
