"""The typed arguments of the library against the table of keys, which is made of the configuration's models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_type_hints

import pytest

import kbackup
from kbackup.config.keys import KEYS, Key
from kbackup.library import configured
from kbackup.library.settings import Time

SECTIONS: dict[str, Any] = {"backup": kbackup.BackupSettings, "restore": kbackup.RestoreSettings}


def keys_of(section: str) -> dict[str, Key]:
    return {path.removeprefix(f"{section}."): key for path, key in KEYS.items() if path.startswith(f"{section}.")}


def expected(key: Key) -> Any:
    """Return the type that an argument has for what a key takes."""
    if key.path == "restore.restore_point":
        return int | str
    words: Any = Literal[key.choices] if key.choices else str
    of_kind: dict[str, Any] = {
        "size": int | str,
        "rate": int | str,
        "duration": float | str,
        "time": Time,
        "flag": bool,
        "number": int,
        "text": str,
        "choice": words,
        "list": Collection[words],
        "table": Mapping[str, str],
    }
    kind = of_kind[key.kind]
    return kind | None if key.default is None else kind


@pytest.mark.parametrize("section", SECTIONS)
def test_arguments_have_the_names_and_types_of_the_keys_of_their_section(section: str) -> None:
    assert get_type_hints(SECTIONS[section]) == {name: expected(key) for name, key in keys_of(section).items()}


@pytest.mark.parametrize(
    ("section", "name", "value", "key"),
    [
        ("backup", "max_age", "26h", 26 * 3600),
        ("backup", "max_age", 60.5, 60.5),
        ("backup", "segment_bytes", "8MiB", 8 << 20),
        ("backup", "topics", {"orders"}, ("orders",)),
        ("restore", "restore_point", 3, 3),
        ("restore", "to_time", datetime(2026, 1, 1, tzinfo=UTC), "1767225600000"),
        ("restore", "to_time", 1767225600000, "1767225600000"),
        ("restore", "map", {"orders": "orders-2"}, {"orders": "orders-2"}),
        ("restore", "settings", ["acls"], ("acls",)),
    ],
)
def test_a_value_of_the_type_is_taken(section: str, name: str, value: object, key: object) -> None:
    assert getattr(configured({}, section, {name: value}).section(section), name) == key
