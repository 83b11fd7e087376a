"""Keys and values as they are shown."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.util.text import kbackup_command
from kbackup.web import render
from kbackup.web.render import VIEWS, View, environment, line, shown


def plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


@given(st.binary(max_size=300) | st.text().map(str.encode), st.sampled_from(VIEWS), st.integers(16, 200))
def test_whatever_it_is(data: bytes, view: View, most: int) -> None:
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


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).filter(lambda value: isinstance(value, list | dict))
)
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
def test_kinds(data: bytes | None, view: View, kind: str, content: str) -> None:
    found = shown(data, view)
    assert (found.kind, plain(found.content)) == (kind, content)


def test_a_character_is_not_cut_in_two() -> None:
    found = shown("é".encode() * 10, "auto", 5)
    assert (found.kind, found.content, found.shown) == ("text", "éé", 5)


def test_brackets_in_each_other_do_not_blow_up() -> None:
    deep = b"[" * 400 + b"1," * 20_000 + b"1" + b"]" * 400
    assert len(shown(deep).content) < 12 * render.WHOLE


def test_a_copied_command_holds_no_controls() -> None:
    macros: Any = environment().get_template("macros.html").module
    command = kbackup_command("find", "--group", "g\x1b[2J\nrm -rf ~")
    html = unescape(str(macros.command(command)))
    assert f'data-copy="{command}"' in html, "what a shell reads as the same name"
    assert command == r"kbackup find --group $'g\033[2J\012rm -rf ~'"
    assert "\x1b" not in str(macros.command("kbackup find\x1b[2J"))


def test_a_copied_name_holds_no_controls() -> None:
    macros: Any = environment().get_template("macros.html").module
    html = str(macros.copy("orders\x1b[2J\nrm -rf ~\u202e"))
    assert r"orders\x1b[2J\nrm -rf ~\u202e" in html
    assert "\x1b" not in html
