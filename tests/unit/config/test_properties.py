"""Java's properties files: the examples of `java.util.Properties.load`, and what a ten-line writer of them writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.config.clients import parse_properties
from kbackup.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Truth = Beauty", {"Truth": "Beauty"}),
        (" Truth:Beauty", {"Truth": "Beauty"}),
        ("Truth                    :Beauty", {"Truth": "Beauty"}),
        (
            "fruits   apple, banana, pear, \\\n    cantaloupe, \\\r\n\t mango",
            {"fruits": "apple, banana, pear, cantaloupe, mango"},
        ),
        ("cheeses", {"cheeses": ""}),
        ("# a\n! b \\\n\nc=d#e\n", {"c": "d#e"}),
        ("a=1\\\n# no comment\nb=2", {"a": "1# no comment", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (r"a\=b\:c\ d==e", {"a=b:c d": "=e"}),
        (r"tab=\t\n\r\f\q\"", {"tab": '\t\n\r\fq"'}),
        (r"u=é\uD83D\uDE00", {"u": "é😀"}),
        ("a=1\ra=2", {"a": "2"}),
        ("trailing= x  ", {"trailing": "x  "}),
        ("end=a\\", {"end": "a"}),
        ("", {}),
    ],
)
def test_parsing_follows_the_java_documentation(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text.encode("latin-1"), "f") == expected


@pytest.mark.parametrize("value", [r"hush\u12G4", r"hush\u12", r"hush\uD83D"])
def test_malformed_escapes_name_the_line_and_no_value(value: str) -> None:
    with pytest.raises(UsageError, match=r"^client\.properties: line 2 ") as raised:
        parse_properties(f"\nsasl.password={value}\n".encode("latin-1"), "client.properties")
    assert "hush" not in str(raised.value)


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(
        chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes
    )


@given(st.dictionaries(st.text(), st.text()), st.sampled_from(["=", ":", " ", " = ", "\t:\t"]))
def test_escaped_properties_are_read_back(values: dict[str, str], sign: str) -> None:
    values.pop("", None) if sign == " " else None
    lines = [f"{_escaped(name)}{sign}{_escaped(value)}" for name, value in values.items()]
    assert parse_properties("\n".join(lines).encode("latin-1"), "f") == values
