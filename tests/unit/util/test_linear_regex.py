"""Expressions in Python's syntax that run in linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.query.selection import Selection
from kbackup.errors import UsageError
from kbackup.jobs.mirror.filters import compile_patterns
from kbackup.jobs.restore.plan import target_name
from kbackup.util.linear_regex import LinearRegex

_PARTS = ("a", "b", ".", "[ab]", "[^a]", "(a|b)", "(?:ab)", r"\.", r"\u0061", r"\x62", r"\w", r"\d", "^", "$")
_REPEATS = ("", "*", "+", "?", "*?", "{2}")
_PATTERNS = st.lists(st.tuples(st.sampled_from(_PARTS), st.sampled_from(_REPEATS)), max_size=5).map(
    lambda parts: "".join(part if part in "^$" else part + repeat for part, repeat in parts)
)


@given(_PATTERNS, st.text("ab.1é", max_size=8), st.sampled_from([r"x", r"<\g<0>>", "a\\\\"]))
def test_matches_and_replacements_are_pythons(pattern: str, text: str, template: str) -> None:
    regex, expected = LinearRegex(pattern), re.compile(pattern, re.ASCII)
    assert regex.fullmatch(text) == bool(expected.fullmatch(text))
    assert regex.search(text) == bool(expected.search(text))
    assert regex.replace_first(template, text) == expected.sub(template, text, count=1)


def test_groups_of_a_replacement_are_pythons() -> None:
    regex = LinearRegex(r"(?P<first>[a-z]+)-(\d+)")
    for template in (r"\2-\1", r"\g<first>.\g<2>", r"\g<0>\g<0>"):
        assert regex.replace_first(template, "orders-17-x") == re.sub(regex.pattern, template, "orders-17-x", count=1)
    for template in (r"\3", r"\g<last>", r"\x"):
        with pytest.raises(ValueError, match="no group"):
            regex.replace_first(template, "orders-17-x")


def test_expressions_that_backtracking_does_not_end_with_end() -> None:
    name, endless = "a" * 200 + "!", "(a+)+b"
    began = time.monotonic()
    assert not Selection.of([f"/{endless}/"], []).matches(name)
    pattern = compile_patterns([endless])
    assert pattern is not None
    assert not pattern.fullmatch(name)
    assert target_name(name, {}, [f"{endless}=x"]) == name
    assert time.monotonic() - began < 5, "an expression took more than linear time"


@pytest.mark.parametrize("pattern", ["(?!a).*", "(?<=a)b", r"(a)\1", "(?>a)", "a*+", "(", "a{1000}" * 10_000])
def test_expressions_that_are_not_linear_are_refused_with_a_hint(pattern: str) -> None:
    with pytest.raises(re.error):
        LinearRegex(pattern)
    with pytest.raises(UsageError, match="is not a regular expression") as caught:
        Selection.of([f"/{pattern}/"], [])
    assert "look-around" in (caught.value.hint or "")
    with pytest.raises(ValueError):
        compile_patterns([pattern])
