"""The topics, groups and configs that a flow selects, by lists and Java's regular expressions in linear time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbackup.util.linear_regex import LinearRegex

_NOT_LINEAR = ("?=", "?!", "?<=", "?<!", "?>")
"""Look-around and atomic groups."""
_NAMED_GROUP = re.compile(r"\?<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_REPEAT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_HEX = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")
_SAME_ESCAPES = frozenset("dDwWsStnrfabB")
_IN_CLASS = frozenset("dDwWsStnrfa")
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": "\\x00-\\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": "!-/:-@\\[-`{-~",
    "Blank": " \\t",
    "XDigit": "0-9a-fA-F",
    "Space": " \\t\\n\\x0b\\f\\r",
}
"""`\\p{…}` of US-ASCII, as the inside of a class."""


def java_pattern(text: str) -> LinearRegex:
    """Return the pattern that matches whole names as Java's `Pattern.compile(text)` does. Raise `ValueError` that names
    what can't be used, and for Java's syntax errors."""
    translated = _Translation(text).translate()
    try:
        return LinearRegex(translated)
    except re.error as error:
        message = str(error).partition(" at position")[0] or f"{text!r} is no regular expression"
        if message.startswith("nothing to repeat"):
            message = "'*', '+' or '?' repeats nothing; write '.*' for every name"
        raise ValueError(message) from None


class _Translation:
    """One pass over the text. `_ignoring` has, for each open group, whether a case-insensitive group is open in it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._ignoring = [False]
        self._names: set[str] = set()

    def translate(self) -> str:
        while self._at < len(self._text):
            char = self._text[self._at]
            if handler := _HANDLERS.get(char):
                handler(self)
            else:
                self._emit(_SAME.get(char) or re.escape(char))
        if len(self._ignoring) > 1:
            raise ValueError("a group is not closed")
        return "".join(self._out) + self._end_flags()

    def _emit(self, text: str, length: int = 1) -> None:
        self._out.append(text)
        self._at += length

    def _end_flags(self) -> str:
        return ")" if self._ignoring[-1] else ""

    def _brace(self) -> None:
        repeat = _REPEAT.match(self._text, self._at)
        if repeat is None:
            raise ValueError("'{' begins no repetition; write '\\{' for the character")
        self._emit(repeat[0], len(repeat[0]))

    def _bar(self) -> None:
        self._emit(")|(?i:" if self._ignoring[-1] else "|")

    def _close(self) -> None:
        if len(self._ignoring) == 1:
            raise ValueError("')' closes no group")
        closing = self._end_flags() + ")"
        self._ignoring.pop()
        self._emit(closing)

    def _open(self) -> None:
        rest = self._text[self._at + 1 :]
        if not rest.startswith("?"):
            return self._begin("(", 1)
        if rest.startswith(_NOT_LINEAR):
            raise ValueError(
                f"look-around and atomic groups such as '({rest[:3]}' can't be run in linear time; "
                "name what is left out in the list of exclusions"
            )
        if rest.startswith("?:"):
            return self._begin("(?:", 3)
        if named := _NAMED_GROUP.match(rest):
            if named[1] in self._names:
                raise ValueError(f"two groups are called {named[1]!r}")
            self._names.add(named[1])
            return self._begin("(", 1 + len(named[0]))
        flags = _FLAGS.match(rest)
        if flags is None or flags[1] not in ("", "i") or flags[2]:
            raise ValueError(f"'({rest[:3]}' can't be used here; of flags, '(?i)' can")
        if flags[3] == ":":
            return self._begin("(?i:" if flags[1] else "(?:", 1 + len(flags[0]))
        if not flags[1] or self._ignoring[-1]:
            return self._emit("", 1 + len(flags[0]))
        # the flag holds up to the end of the group, through all alternatives that follow
        self._ignoring[-1] = True
        return self._emit("(?i:", 1 + len(flags[0]))

    def _begin(self, opening: str, length: int) -> None:
        self._ignoring.append(False)
        self._emit(opening, length)

    def _backslash(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "Q":
            end = self._text.find("\\E", self._at + 2)
            stop = len(self._text) if end < 0 else end
            # a quantifier behind a quotation repeats its last character alone, as it does in Java
            self._emit(re.escape(self._text[self._at + 2 : stop]))
            self._at = len(self._text) if end < 0 else end + 2
        elif following in _SAME_ESCAPES and following:
            self._emit(f"\\{following}", 2)
        elif following in ("A", "z", "Z"):
            self._emit(r"\A" if following == "A" else r"\Z", 2)
        else:
            self._emit(*self._escaped(following, "[{}]"))

    def _escaped(self, following: str, posix: str) -> tuple[str, int]:
        """Return (translation, length) of an escape that means the same inside a class and outside."""
        if found := _HEX.match(self._text, self._at + 1):
            return f"\\{found[0]}", 1 + len(found[0])
        if following == "e":
            return "\\x1b", 2
        if following == "p":
            named = re.match(r"p\{(?:Is)?(\w+)\}", self._text[self._at + 1 :])
            if named is None or named[1] not in _POSIX:
                raise ValueError(f"'\\p' can't be used here, except with {', '.join(_POSIX)}")
            return posix.format(_POSIX[named[1]]), 1 + len(named[0])
        if not following:
            raise ValueError("'\\' escapes nothing")
        if following.isascii() and following.isalnum():
            raise ValueError(f"'\\{following}' can't be used here")
        return re.escape(following), 2

    def _class(self) -> None:
        start, first = self._at, True
        self._emit("[")
        if self._text[self._at : self._at + 1] == "^":
            self._emit("^")
        while (char := self._text[self._at : self._at + 1]) != "]" or first:
            following = self._text[self._at + 1 : self._at + 2]
            if not char:
                raise ValueError(f"the class '{self._text[start:]}' is not closed")
            if char == "[" or self._text.startswith("&&", self._at):
                raise ValueError("classes within classes, and '&&', can't be used here")
            if char != "\\":
                self._emit("-" if char == "-" else re.escape(char))
            elif following and following in _IN_CLASS:
                self._emit(f"\\{following}", 2)
            else:
                self._emit(*self._escaped(following, "{}"))
            first = False
        self._emit("]")


_HANDLERS: dict[str, Callable[[_Translation], None]] = {
    "\\": _Translation._backslash,
    "[": _Translation._class,
    "(": _Translation._open,
    ")": _Translation._close,
    "|": _Translation._bar,
    "{": _Translation._brace,
}
_SAME = {".": r"[^\n\r\x85\u2028\u2029]", "$": r"\Z", "^": "^", "*": "*", "+": "+", "?": "?"}


@dataclass(frozen=True)
class PatternFilter:
    """Names that match `include` wholly and `exclude` not, as MirrorMaker 2's default filters select. None matches
    nothing."""

    include: LinearRegex | None
    exclude: LinearRegex | None

    def __call__(self, name: str) -> bool:
        included = self.include is not None and self.include.fullmatch(name)
        return included and not (self.exclude is not None and self.exclude.fullmatch(name))


def compile_patterns(patterns: Sequence[str]) -> LinearRegex | None:
    """Return one pattern of a list of Java regular expressions; None for an empty list, which matches nothing.

    MirrorMaker 2 joins the list by `|` before it compiles. So a group may begin in one item and end in another.
    Raise `ValueError` for what Java refuses, and for what can't be done as Java does.
    """
    return java_pattern("|".join(patterns)) if patterns else None
