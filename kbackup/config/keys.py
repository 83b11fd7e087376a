"""The table of keys, made of the models: the name of each key, the values it takes, its default and its meaning."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from kbackup.config.models import Config, store_models
from kbackup.config.times import TIMES
from kbackup.config.windows import RANGES
from kbackup.errors import UsageError

ValueKind = Literal["size", "rate", "duration", "time", "flag", "number", "choice", "text", "list", "table"]

_EXPECTED = {
    "restore.restore_point": "a number, a label or latest",
    "restore.range": RANGES,
    "restore.skip": RANGES,
    "archive_id": "32 hex digits",
    "size": "a size such as 8MiB",
    "rate": "a rate such as 50MB/s",
    "duration": "a duration such as 90s",
    "time": TIMES,
    "flag": "true or false",
    "number": "a number",
    "text": "text",
    "table": "a table of name = value",
}
"""The values that a key, or a key of a kind, takes."""


class Key(NamedTuple):
    """A key of the configuration. Values are converted to `type`; a "table" takes any name below its path."""

    path: str
    type: Any
    kind: ValueKind
    default: object
    doc: str

    @property
    def expected(self) -> str:
        """The values that the key takes, for messages and the reference."""
        if self.path in _EXPECTED:
            return _EXPECTED[self.path]
        if self.kind == "choice":
            text = " or ".join(choice for choice in self.choices if choice)
        elif self.kind == "list":
            items = ", ".join(self.choices) or "text"
            text = f"a list of {items}"
        else:
            text = _EXPECTED[self.kind]
        for meta in _metas(self.type):
            if meta.ge is not None and meta.le is not None:
                return f"{text}, {meta.ge} to {meta.le}"
            if meta.ge is not None:
                return f"{text}, at least {meta.ge}"
        return text

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that a value, or an item of a list, is one of; none if any will do."""
        return _literals(self.type)

    @property
    def default_text(self) -> str:
        return show_value(self, self.default)


def show_value(key: Key, value: object) -> str:
    """Return the value of a key as people write it; "" if nothing is set."""
    if value is None or value in ((), {}, []):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, int | float):
        if key.kind == "rate":
            return f"{_size_text(int(value))}/s"
        if key.kind == "size":
            return _size_text(int(value))
        if key.kind == "duration":
            return _duration_text(value)
    return str(value)


def _size_text(nbytes: int) -> str:
    """Return a size in the largest unit in which it is a whole number."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)


def _duration_text(seconds: float) -> str:
    if seconds >= 2 * 86400 and seconds % 86400 == 0:
        return f"{seconds / 86400:g}d"
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g}h"
    return f"{seconds:g}s"


def locate(path: str, where: str) -> tuple[Key, str | None]:
    """Return the key of a dotted path and, within a table, the name below the table's path.

    Raises `UsageError` with the nearest name for a path that has no key."""
    known = KEYS.get(RENAMED.get(path, path))
    if known is not None:
        return known, None
    for key in KEYS.values():
        table = f"{key.path}."
        if key.kind == "table" and path.startswith(table):
            return key, path.removeprefix(table)
    if path in REMOVED:
        raise UsageError(f"{where}: {path} no longer exists", REMOVED[path])
    if path in SECTIONS:
        first = next(key for key in KEYS if key.startswith(f"{path}."))
        raise UsageError(f"{where}: {path} is a section", f"set a key in it, such as {first}")
    raise UsageError(f"{where}: unknown key {path}", _suggestion(path))


STORES = store_models()
"""The models of the sections of stores: they are in `Config.stores`, and stand in files beside the others."""


def _sections() -> tuple[str, ...]:
    """Return the sections of a file: the fields of `Config` that are models, and a section for each kind of store."""
    sections: list[str] = []
    for name, hint in get_type_hints(Config).items():
        if name == "stores":
            sections += STORES
        elif isinstance(hint, type) and get_origin(hint) is None and hint is not bool:
            # The other fields are texts or numbers that may be None, tables, or flags.
            sections.append(name)
    return tuple(sections)


SECTIONS = _sections()


def _keys(model: type[Any], prefix: str) -> Iterator[Key]:
    defaults = model()
    for name, hint in get_type_hints(model, include_extras=True).items():
        if model is Config and name == "stores":
            for section, options in STORES.items():
                yield from _keys(options, f"{section}.")
        elif model is Config and name in SECTIONS:
            yield from _keys(hint, f"{name}.")
        else:
            default = getattr(defaults, name)
            texts = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, str)]
            yield Key(prefix + name, hint, _kind(name, hint), default, "".join(texts))


def _kind(name: str, hint: Any) -> ValueKind:
    plain = _plain(hint)
    if get_origin(plain) is dict:
        return "table"
    if get_origin(plain) is tuple:
        return "list"
    if plain is bool:
        return "flag"
    if _literals(hint):
        return "choice"
    if plain in (int, float):
        if name.endswith("_rate"):
            return "rate"
        if name.endswith(("_bytes", "_size", "_below")):
            return "size"
        if name.endswith(("_seconds", "_timeout", "_age")):
            return "duration"
        return "number"
    return "time" if name.endswith("_time") else "text"


def _plain(hint: Any) -> Any:
    """Return the type without its annotations and without None."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    parts = get_args(hint)
    others = [part for part in parts if part is not type(None)]
    is_optional = type(None) in parts and len(others) == 1
    return _plain(others[0]) if is_optional else hint


def _literals(hint: Any) -> tuple[str, ...]:
    """Return the words of a type that is a choice, or a list of choices."""
    plain = _plain(hint)
    if get_origin(plain) is Literal:
        return get_args(plain)
    words: list[str] = []
    for part in get_args(plain):
        if get_origin(part) is Literal:
            words += get_args(part)
    return tuple(words)


def _metas(hint: Any) -> list[msgspec.Meta]:
    """Return the limits in the annotations of a type, the outermost first."""
    found = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, msgspec.Meta)]
    for part in get_args(hint):
        found += _metas(part)
    return found


def _suggestion(path: str) -> str:
    """Return a hint with the nearest key, a key of that name in another section, or the nearest section."""
    also = "`kbackup config --keys` lists all"
    near = _nearest(path)
    return f"did you mean {near}? {also}" if near is not None else also


def _nearest(path: str) -> str | None:
    similar: list[str] = difflib.get_close_matches(path, KEYS, n=1, cutoff=0.75)
    if similar:
        return similar[0]
    leaf = path.rpartition(".")[2]
    for key in KEYS:
        if key.rpartition(".")[2] == leaf:
            return key
    first = path.partition(".")[0]
    top_names = [*SECTIONS, *[key for key in KEYS if "." not in key]]
    if first in top_names:
        return None
    similar = difflib.get_close_matches(first, top_names, n=1)
    return similar[0] if similar else None


RENAMED = {"restore.backup": "restore.restore_point"}
"""Former paths of keys, which files and variables may still have."""

REMOVED = {
    "restore.from_delta": """let Spark read the Delta table and write its records into Kafka:
  rows = spark.read.format("delta").load("s3a://lake/kafka/orders").repartition("partition")
  records = rows.sortWithinPartitions("offset").select("topic", "partition", "key", "value", "headers")
  records.write.format("kafka").option("kafka.bootstrap.servers", "broker:9092").save()"""
}
"""Keys of the release before that are gone, and what to do in their place."""

KEYS: dict[str, Key] = {key.path: key for key in _keys(Config, "")}
