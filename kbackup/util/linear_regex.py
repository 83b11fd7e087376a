"""Regular expressions that end in time that grows with the text alone: RE2, as pyarrow has it.

Whoever writes an expression (a link to the page, a configuration) can write one that Python's own engine
does not end with. pyarrow is imported when an expression is first run: commands without one start without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_MAX_PATTERN = 10_000
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_REFERENCE = re.compile(r"\\(?:g<(?P<name>\w+)>|(?P<number>[0-9]{1,2})|(?P<sign>.?))", re.DOTALL)


# A job asks again and again about the same names, and each question takes 40 us.
@lru_cache(1 << 16)
def _search(pattern: str, text: str) -> bool:
    """Return whether RE2's `pattern` matches somewhere in `text`. `ValueError` for a pattern that RE2 does not know."""
    return bool(_run("match_substring_regex", pattern, text))


def _run(function: str, pattern: str, text: str, **options: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute

    if len(pattern) > _MAX_PATTERN:
        raise ValueError(f"a regular expression of {len(pattern)} characters, at most {_MAX_PATTERN} are run")
    try:
        strings = pa.array([text.encode("utf-8", "backslashreplace").decode()], pa.large_string())
        results = getattr(pyarrow.compute, function)(strings, pattern=pattern, **options)
        return results[0].as_py()
    except pa.ArrowInvalid as error:
        reason = str(error).partition("Invalid regular expression: ")[2] or str(error)
        raise ValueError(f"regular expression {pattern!r} can't be run in linear time: {reason}") from None


@dataclass(frozen=True)
class LinearRegex:
    """An expression in Python's syntax, without look-around, back references, and atomic or possessive parts.

    Classes such as `\\w` are of ASCII, and `$` is the end of the text. `re.error` for what can't be run.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
            self.search("")
        except (ValueError, OverflowError, RecursionError) as error:
            raise re.error(str(error), self.pattern) from None

    def search(self, text: str) -> bool:
        return _search(self._linear, text)

    def fullmatch(self, text: str) -> bool:
        return _search(rf"\A(?:{self._linear})\z", text)

    def replace_first(self, template: str, text: str) -> str:
        """Replace the first match by `template`, as Python's `re.sub` would. `ValueError` for a template with a group
        that the expression lacks."""
        known = re.compile(self.pattern)

        def rewritten(reference: re.Match[str]) -> str:
            if reference["sign"] == "\\":
                return r"\\"
            name = reference["name"] or reference["number"] or ""
            group = int(name) if name.isdecimal() else known.groupindex.get(name, -1)
            if not 0 <= group <= min(known.groups, 9):
                raise ValueError(f"{reference[0]} is no group of {self.pattern!r}")
            return rf"\{group}"

        rewrite = _REFERENCE.sub(rewritten, template)
        replaced: str = _run("replace_substring_regex", self._linear, text, replacement=rewrite, max_replacements=1)
        return replaced

    @property
    def _linear(self) -> str:
        """The same in RE2's syntax."""
        return _ESCAPE.sub(_linear_escape, self.pattern)


def _linear_escape(escape: re.Match[str]) -> str:
    """Return an escape of Python's syntax in RE2's."""
    sign = escape[1]
    if sign == "Z":
        return r"\z"
    if len(sign) > 1:
        # \u1234 and \U00012345 are \x{1234} and \x{00012345}.
        return rf"\x{{{sign[1:]}}}"
    return escape[0]
