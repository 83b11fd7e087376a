"""JSON in lines: the same value, in pieces that do not grow with it."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.store.file import FileStore
from kbackup.web.render import LEVELS, indented, is_json
from tests.support.archives import commit_point, topic_state, write_block
from tests.support.plain_records import Plain, block_of
from tests.support.visits import links, text, visit

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).filter(lambda value: isinstance(value, list | dict))


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


def test_a_long_value_is_shown_whole(tmp_path: Path) -> None:
    """Its page shows the beginning in lines, and leads to all of it."""
    value = json.dumps([{"number": n, "text": "<b>\u202e" * 20} for n in range(2000)], ensure_ascii=False).encode()
    store = FileStore(tmp_path / "archive")
    plain = [Plain(b"key", value, headers=((b"long", value), (b"text", b"no JSON")))]
    segments = write_block(store, SegmentTarget("orders", 1, 0, 1 << 24, "none"), block_of(plain))
    state = topic_state("orders", 1, "present", [(0, 1, segments)])
    commit_point(open_or_create(store), 1, [state], segments, [])
    client = visit(store)
    page = client.get("/topics/orders/0/records/0")
    assert re.search(r"the first 6[34]\.. KiB of", text(page.text))
    assert len(page.text) < len(value)
    for field in ("value", "headers/0"):
        (link,) = {each for each in links(page.text) if each.endswith(f"/{field}?view=json")}
        answer = client.get(link)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json() == json.loads(value)
        assert answer.text.startswith('[\n  {\n    "number": 0,\n    "text": "<b>\\u202e')
    for field in ("key", "headers/1"):
        refused = client.get(f"/topics/orders/0/records/0/{field}?view=json")
        assert refused.status_code == 404
        assert "this field of the record is not JSON" in text(refused.text)
