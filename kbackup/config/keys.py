"""The table of keys, read off the models: what each is called, takes, defaults to and means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from kbackup.config.models import Config, store_models
from kbackup.config.windows import RANGES, TIMES
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
    """One settable key. `type` is what a value is converted to; a "table" takes any name below its path."""

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
            text = " or ".join(filter(None, self.choices))
        elif self.kind == "list":
            text = f"a list of {', '.join(self.choices) or 'text'}"
        else:
            text = _EXPECTED[self.kind]
        for meta in _metas(self.type):
            if meta.ge is not None:
                return f"{text}, {meta.ge} to {meta.le}" if meta.le is not None else f"{text}, at least {meta.ge}"
        return text

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that a value, or an item of a list, is one of; none if any will do."""
        return _literals(self.type)

    @property
    def default_text(self) -> str:
        return show_value(self, self.default)


def show_value(key: Key, value: object) -> str:
    """`value` as people write it; "" where nothing is set."""
    if value is None or value in ((), {}, []):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int | float) and key.kind == "rate":
        return f"{show_value(key._replace(kind='size'), value)}/s"
    if isinstance(value, int | float) and key.kind == "size":
        units = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))
        fitting = (f"{int(value) >> shift}{unit}" for shift, unit in units if value and value % (1 << shift) == 0)
        return next(fitting, str(int(value)))
    if isinstance(value, int | float) and key.kind == "duration":
        if value >= 2 * 86400 and value % 86400 == 0:
            return f"{value / 86400:g}d"
        return f"{value / 3600:g}h" if value >= 3600 and value % 3600 == 0 else f"{value:g}s"
    return str(value)


def locate(path: str, where: str) -> tuple[Key, str | None]:
    """Return the key of a dotted path and, within a table, the name below it; `UsageError` with the nearest name for
    others."""
    if key := KEYS.get(RENAMED.get(path, path)):
        return key, None
    for key in KEYS.values():
        if key.kind == "table" and path.startswith(key.path + "."):
            return key, path[len(key.path) + 1 :]
    if path in REMOVED:
        raise UsageError(f"{where}: {path} is gone", REMOVED[path])
    if path in SECTIONS:
        first = next(key for key in KEYS if key.startswith(f"{path}."))
        raise UsageError(f"{where}: {path} is a section", f"set a key in it, such as {first}")
    raise UsageError(f"{where}: unknown key {path}", _suggestion(path))


STORES = store_models()
"""The models of the sections of stores: they are in `Config.stores`, and stand in files beside the others."""

SECTIONS: tuple[str, ...] = tuple(
    section
    for name, hint in get_type_hints(Config).items()
    for section in (STORES if name == "stores" else (name,))
    if name == "stores" or (isinstance(hint, type) and get_origin(hint) is None and hint is not bool)
)


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
        if unit := re.search(r"_(bytes|size|rate)$", name):
            return "rate" if unit[1] == "rate" else "size"
        return "duration" if re.search(r"(_seconds|_timeout|_age)$", name) else "number"
    return "time" if name.endswith("_time") else "text"


def _plain(hint: Any) -> Any:
    """Return the type without its annotations and without None."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    parts = [part for part in get_args(hint) if part is not type(None)]
    return _plain(parts[0]) if type(None) in get_args(hint) and len(parts) == 1 else hint


def _literals(hint: Any) -> tuple[str, ...]:
    plain = _plain(hint)
    if get_origin(plain) is Literal:
        return get_args(plain)
    return tuple(text for part in get_args(plain) if get_origin(part) is Literal for text in get_args(part))


def _metas(hint: Any) -> list[msgspec.Meta]:
    found = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, msgspec.Meta)]
    return found + [meta for part in get_args(hint) for meta in _metas(part)]


def _suggestion(path: str) -> str:
    """Return the nearest key, a key of that name in another section, or the nearest section."""
    first, leaf = path.partition(".")[0], path.rpartition(".")[2]
    tops = [*SECTIONS, *(key for key in KEYS if "." not in key)]
    near = (
        difflib.get_close_matches(path, KEYS, n=1, cutoff=0.75)
        or [key for key in KEYS if key.rpartition(".")[2] == leaf]
        or (difflib.get_close_matches(first, tops, n=1) if first not in tops else [])
    )
    also = "`kbackup config --keys` lists all"
    return f"did you mean {near[0]}? {also}" if near else also


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
