"""Regular expressions of others in linear time: RE2, as pyarrow brings it, in place of Python's in jsonschema.

A schema and a record can be made for each other so that Python's backtracking does not end. jsonschema has no setting
for it, so its modules get this in place of `re`. An extended validator would not do: a part of a schema that names a
draft of its own is validated by the stock one.
"""

from __future__ import annotations

import sys

import jsonschema  # noqa: F401 (its modules are looked up below)
import pyarrow as pa
import pyarrow.compute as pc

_MODULES = ("_keywords", "_validators", "_legacy_keywords", "_legacy_validators", "_utils")
_MAX_PATTERN = 10_000


def search(pattern: str, text: str) -> bool:
    """Whether `pattern` matches somewhere in `text`. `ValueError` for a pattern that RE2 does not know: look-around and
    back references."""
    if len(pattern) > _MAX_PATTERN:
        raise ValueError(f"a regular expression of {len(pattern)} characters, at most {_MAX_PATTERN} are run")
    try:
        return bool(pc.match_substring_regex(pa.array([text], pa.large_string()), pattern)[0].as_py())
    except pa.ArrowInvalid as error:
        raise ValueError(f"regular expression {pattern!r} can't be run in linear time: {error}") from error


class _Linear:
    search = staticmethod(search)


def install() -> None:
    """Let jsonschema search with it."""
    for name in _MODULES:
        module = sys.modules.get(f"jsonschema.{name}")
        if module is not None and hasattr(module, "re"):
            vars(module)["re"] = _Linear
