"""The golden vectors of `formats/vectors`: hexadecimal text with comments, and what it stands for."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.unit.formats.reference import Record

FORMATS = Path(__file__).parents[2] / "formats"
VECTORS = FORMATS / "vectors"

_TOKEN = re.compile(r"'(?P<text>[^']*)'|#[^\n]*|\s+|(?P<hex>[0-9a-f]+)|(?P<bad>.)")


def octets(kind: str, name: str) -> bytes:
    """Return the bytes of the file that `<kind>/<name>.hex` describes."""
    digits = ""
    for token in _TOKEN.finditer((VECTORS / kind / f"{name}.hex").read_text()):
        if token["bad"]:
            raise ValueError(f"{kind}/{name}.hex: {token['bad']!r} is neither a digit nor text")
        digits += (token["text"] or "").encode().hex() + (token["hex"] or "")
    return bytes.fromhex(digits)


def expected(kind: str) -> dict[str, dict[str, Any]]:
    """Return the vectors of a kind by name: what each holds, or why readers refuse it."""
    vectors: dict[str, dict[str, Any]] = json.loads((VECTORS / kind / "expected.json").read_text())
    return vectors


def each(kind: str, *, good: bool) -> pytest.MarkDecorator:
    """Run a test with `data` and `vector` of every vector of a kind that readers accept, or that they refuse."""
    cases = [
        pytest.param(octets(kind, name), vector, id=name)
        for name, vector in expected(kind).items()
        if ("refused" not in vector) == good
    ]
    return pytest.mark.parametrize(("data", "vector"), cases)


def _octets(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def record_of(row: list[Any]) -> Record:
    offset, kind, timestamp, key, value, headers = row
    pairs = [(name, _octets(content)) for name, content in headers]
    return Record(offset, kind, timestamp, _octets(key), _octets(value), pairs)
