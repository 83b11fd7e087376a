"""Load the configuration from file, environment and flags, and check it before any cluster is asked."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from kbackup.config.clients import ALIASES, CONTROLLED, load_client_properties
from kbackup.config.keys import KEYS, SECTIONS, STORES, locate
from kbackup.config.models import Config
from kbackup.config.secrets import is_secret
from kbackup.config.values import convert, entries, flatten, property_text, resolve
from kbackup.errors import UsageError
from kbackup.metadata.sources import check_source_property, is_source_property
from kbackup.native.property_check import COMMON, refusal


def check_client_property(path: str, value: str, *, verbatim: bool, where: str) -> None:
    """Raise `UsageError` for a property of `source` or `target` that librdkafka refuses, or that names a source of
    metadata wrongly. `verbatim`: the value stands in the configuration as it is. Only such a value is shown, and no
    secret."""
    section, _, name = path.partition(".")
    if is_source_property(name):
        if section != "source":
            raise UsageError(f"{where}: {path} is of the source alone", f"set source.{name}")
        check_source_property(path, value, where, show=verbatim)
        return
    refused = refusal(name, value)
    if refused is None:
        return
    own = f"give a client.properties of Kafka's own tools by --{section}-config"
    hint = f"librdkafka's CONFIGURATION.md has names and values; {own}"
    if refused.kind == "unknown name":
        near = difflib.get_close_matches(name, COMMON, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else hint
        raise UsageError(f"{where}: {path}: librdkafka has no property {name}", hint)
    words = refused.words if verbatim and not is_secret(path) else "librdkafka refuses its value"
    raise UsageError(f"{where}: {path}: {words}", hint)


# From file, environment and flags, in rising precedence, to a `Config`, and where each value came from:
#
# 1. defaults
# 2. `kbackup.toml`: the file given, else KBACKUP_CONFIG, else ./kbackup.toml where there is one
# 3. client properties files named by KBACKUP_SOURCE_CONFIG and KBACKUP_TARGET_CONFIG
# 4. KBACKUP_<SECTION>_<KEY>; below KBACKUP_SOURCE_ and KBACKUP_TARGET_ an underscore stands for a dot
# 5. client properties files given by flags
# 6. flags
#
# Entries of tables are merged name by name; lists are replaced whole.


DEFAULT_FILE = "kbackup.toml"
TRUST_OPTIONS = "KBACKUP_TRUST_OPTIONS"
_EXPLICIT = f"if you trust it, name it: --config {DEFAULT_FILE}"
VARIABLES = {
    "KBACKUP_CONFIG": "Configuration file, as `--config`.",
    "KBACKUP_SOURCE_CONFIG": "Java client properties of the source cluster, as `--source-config`.",
    "KBACKUP_TARGET_CONFIG": "Java client properties of the target cluster, as `--target-config`.",
    "KBACKUP_KERNEL": "Encoder of records: `native` or `python`.",
    TRUST_OPTIONS: "`1` lets options of a Spark read name commands, files and variables of the driver.",
    "KBACKUP_DEBUG": "`1` shows tracebacks, as `--debug`.",
}
"""Variables that are no keys."""

_CLIENTS = ("source", "target")
"""Tables of librdkafka's properties."""

# Kubernetes sets these for every service near a pod, also for one named kbackup; the cache is for tests and demo
_NOT_OURS = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_[0-9]+_(TCP|UDP)(_PROTO|_PORT|_ADDR)?)?$|^KBACKUP_CACHE$")


class SettingOrigin(NamedTuple):
    """The source of a value; `name` is the file, the variable, the flag, or the option of a Spark read; an argument
    of the library has none."""

    kind: Literal["default", "file", "environment", "flag", "option", "argument"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class Setting(NamedTuple):
    """A value as it was written, for the dotted path of a key or of an entry in a table."""

    path: str
    value: object
    origin: SettingOrigin


class Loaded(NamedTuple):
    """`origins` has every key, and every entry of keys that are tables; `notes` explain what was left out of client
    properties files."""

    config: Config
    origins: Mapping[str, SettingOrigin]
    notes: tuple[str, ...]


class ConfigFiles(NamedTuple):
    """Files given by flags: the configuration, and Java client properties of the two clusters."""

    config: str | None = None
    source: str | None = None
    target: str | None = None


def load(
    flags: Iterable[Setting] = (),
    files: ConfigFiles = ConfigFiles(),  # noqa: B008 (immutable)
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Merge all layers; `UsageError` names file and key of whatever can't be used."""
    named = ConfigFiles(*(environ.get(name) or None for name in list(VARIABLES)[:3]))
    by_variable, notes = _from_clients(named, "environment")
    by_flag, more = _from_clients(files, "flag")
    settings = [*_from_file(files.config or named.config), *by_variable, *_from_environment(environ), *by_flag, *flags]
    merged = _merge(settings, environ)
    defaults = {key.path: SettingOrigin("default") for key in KEYS.values() if key.kind != "table"}
    origins = defaults | {setting.path: setting.origin for setting in merged.values()}
    return Loaded(_build(merged), origins, (*notes, *more))


def _from_file(name: str | None) -> list[Setting]:
    if name is None and not Path(DEFAULT_FILE).is_file():
        return []
    file = name or DEFAULT_FILE
    try:
        with Path(file).open("rb") as opened:
            if name is None:
                _check_owner(opened)
            table = tomllib.load(opened)
    except OSError as error:
        raise UsageError(f"{file}: {(error.strerror or str(error)).lower()}", "name a readable file") from error
    except ValueError as error:
        raise UsageError(f"{file}: not TOML: {error}", 'put strings in quotes: name = "value"') from error
    values = flatten(table)
    if twice := [path for path, count in Counter(path for path, _ in values).items() if count > 1]:
        raise UsageError(f"{file}: {twice[0]} stands there twice", "remove one: it stands there quoted and as a table")
    return [Setting(path, value, SettingOrigin("file", file)) for path, value in values]


def _check_owner(opened: BinaryIO) -> None:
    """Refuse a `DEFAULT_FILE` that another user can have written: its `command:` keys would run as ours."""
    file, link = os.fstat(opened.fileno()), os.lstat(DEFAULT_FILE)
    for status in (file, link):
        if status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"./{DEFAULT_FILE} belongs to user {status.st_uid}", _EXPLICIT)
    others = file.st_mode & stat.S_IWOTH
    group = file.st_mode & stat.S_IWGRP and file.st_gid not in (0, os.getegid())
    if others or group:
        raise UsageError(f"./{DEFAULT_FILE} can be written by other users", f"{_EXPLICIT}, or chmod go-w it")


def _from_environment(environ: Mapping[str, str]) -> list[Setting]:
    paths = {"KBACKUP_" + key.path.upper().replace(".", "_"): key.path for key in KEYS.values()}
    return [
        Setting(paths.get(name) or _property_path(name), value, SettingOrigin("environment", name))
        for name, value in sorted(environ.items())
        if name.startswith("KBACKUP_") and value and name not in VARIABLES and not _NOT_OURS.search(name)
    ]


def _property_path(name: str) -> str:
    """KBACKUP_SOURCE_SASL_PASSWORD is source.sasl.password; what is neither that nor a key is refused later."""
    first, _, rest = name.removeprefix("KBACKUP_").lower().partition("_")
    if first in _CLIENTS:
        return f"{first}.{rest.replace('_', '.')}"
    near = difflib.get_close_matches(first, (*SECTIONS, "source", "target"), n=1, cutoff=0.8)
    return f"{first}.{rest}" if near and rest else f"{first}_{rest}".rstrip("_")


def _from_clients(files: ConfigFiles, kind: Literal["environment", "flag"]) -> tuple[list[Setting], tuple[str, ...]]:
    settings: list[Setting] = []
    notes: tuple[str, ...] = ()
    for section, file in (("source", files.source), ("target", files.target)):
        if file:
            client = load_client_properties(file)
            origin = SettingOrigin(kind, f"--{section}-config {file}" if kind == "flag" else file)
            settings += [Setting(f"{section}.{name}", value, origin) for name, value in client.properties.items()]
            notes += client.notes
    return settings, notes


def _merge(settings: Iterable[Setting], environ: Mapping[str, str]) -> dict[tuple[str, str | None], Setting]:
    """Return (key path, name within a table) to the setting that wins, resolved and converted. All are checked, also
    those that don't win."""
    merged: dict[tuple[str, str | None], Setting] = {}
    for path, written, origin in settings:
        key, name = locate(path, str(origin))
        value = resolve(written, f"{origin}: {path}", environ)
        if key.kind != "table":
            merged[key.path, None] = Setting(key.path, convert(key, value, str(origin)), origin)
            continue
        named = {name: value} if name is not None else entries(key, value, str(origin))
        for entry, item in named.items():
            is_client = key.path in _CLIENTS
            if is_client and entry in CONTROLLED:
                raise UsageError(f"{origin}: {key.path}.{entry} is kbackup's own to set", CONTROLLED[entry])
            entry = ALIASES.get(entry, entry) if is_client else entry
            entry_path = f"{key.path}.{entry}"
            text = property_text(entry_path, item, str(origin))
            if is_client:
                check_client_property(entry_path, text, verbatim="${" not in str(written), where=str(origin))
            merged[key.path, entry] = Setting(entry_path, text, origin)
    return merged


def _build(merged: Mapping[tuple[str, str | None], Setting]) -> Config:
    values: dict[str, Any] = {}
    for (path, name), setting in merged.items():
        section, _, field = path.rpartition(".")
        fields = values.setdefault(section, {}) if section else values
        if name is None:
            fields[field] = setting.value
        else:
            fields.setdefault(field, {})[name] = setting.value
    stores = {name: msgspec.convert(values.pop(name, {}), model, strict=True) for name, model in STORES.items()}
    config = msgspec.structs.replace(msgspec.convert(values, Config, strict=True), stores=stores)
    _ = config.sources  # it says which properties don't go together
    return config


def settings_in_effect(loaded: Loaded) -> list[Setting]:
    """Return every key's value and every entry of the tables, in the order of `KEYS`. Secrets are as they are."""
    settings = []
    for key in KEYS.values():
        section, _, field = key.path.rpartition(".")
        value = getattr(loaded.config.section(section) if section else loaded.config, field)
        if key.kind == "table":
            paths = {f"{key.path}.{name}": value[name] for name in sorted(value)}
            settings += [Setting(path, item, loaded.origins[path]) for path, item in paths.items()]
        else:
            settings.append(Setting(key.path, value, loaded.origins[key.path]))
    return settings
