"""The golden vectors of `formats/vectors`: hexadecimal text with comments, and what it stands for."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.unit.formats.reference import Record, a_record

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


def each(kind: str) -> pytest.MarkDecorator:
    """Run a test with `data` and `vector` of every vector of a kind that readers accept."""
    good = {name: vector for name, vector in expected(kind).items() if "refused" not in vector}
    cases = [pytest.param(octets(kind, name), vector, id=name) for name, vector in good.items()]
    return pytest.mark.parametrize(("data", "vector"), cases)


def refused(*kinds: str) -> pytest.MarkDecorator:
    """Run a test with `kind`, `name`, `data` and `vector` of every vector of some kinds that readers refuse."""
    bad = [(kind, name, vector) for kind in kinds for name, vector in expected(kind).items() if "refused" in vector]
    cases = [pytest.param(kind, name, octets(kind, name), vector, id=f"{kind}-{name}") for kind, name, vector in bad]
    return pytest.mark.parametrize(("kind", "name", "data", "vector"), cases)


def record_of(row: list[Any]) -> Record:
    def decoded(text: str | None) -> bytes | None:
        return None if text is None else b64decode(text)

    offset, kind, timestamp, key, value, headers = row
    pairs = [(name, decoded(content)) for name, content in headers]
    return a_record(
        offset,
        kind=kind,
        timestamp=timestamp if kind >= 0 else None,
        key=decoded(key),
        value=decoded(value),
        headers=pairs,
    )
