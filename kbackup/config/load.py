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
            raise UsageError(f"{where}: {path} is a setting of the source alone", f"set source.{name}")
        check_source_property(path, value, where, show=verbatim)
        return
    refused = refusal(name, value)
    if refused is None:
        return
    own = f"give a client.properties of Kafka's own tools by --{section}-config"
    hint = f"librdkafka's CONFIGURATION.md has names and values; {own}"
    if refused.kind == "unknown name":
        near = difflib.get_close_matches(name, COMMON, n=1, cutoff=0.8)
        if near:
            hint = f"did you mean {near[0]}?"
        raise UsageError(f"{where}: {path}: librdkafka has no property {name}", hint)
    # librdkafka's words have the value in them.
    may_show = verbatim and not is_secret(path)
    words = refused.words if may_show else "librdkafka refuses its value"
    raise UsageError(f"{where}: {path}: {words}", hint)


# From file, environment and flags, in rising precedence, to a `Config`, and where each value came from:
#
# 1. defaults
# 2. `kbackup.toml`: the file given, else KBACKUP_CONFIG, else ./kbackup.toml if there is one
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

# Kubernetes sets such variables for every service near a pod, also for a service named kbackup. The cache is for tests
# and the demo.
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
    """The configuration. `origins` has every key, and every entry of keys that are tables; `notes` explain which
    properties of client properties files were left out."""

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
    """Merge all layers of settings. `UsageError` names the file and the key of a setting that can't be used."""
    named = ConfigFiles(
        config=environ.get("KBACKUP_CONFIG") or None,
        source=environ.get("KBACKUP_SOURCE_CONFIG") or None,
        target=environ.get("KBACKUP_TARGET_CONFIG") or None,
    )
    clients_of_variables, notes = _from_clients(named, "environment")
    clients_of_flags, notes_of_flags = _from_clients(files, "flag")
    # In rising precedence: of two settings of a key, the later one wins.
    settings = _from_file(files.config or named.config)
    settings += clients_of_variables
    settings += settings_of_environment(environ)
    settings += clients_of_flags
    settings += flags
    merged = _merge(settings, environ)
    origins: dict[str, SettingOrigin] = {}
    for key in KEYS.values():
        if key.kind != "table":
            origins[key.path] = SettingOrigin("default")
    for setting in merged.values():
        origins[setting.path] = setting.origin
    return Loaded(_build(merged), origins, notes + notes_of_flags)


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
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{file}: {reason}", "name a readable file") from error
    except ValueError as error:
        raise UsageError(f"{file}: not TOML: {error}", 'put strings in quotes: name = "value"') from error
    values = flatten(table)
    # TOML knows "a.b" = 1 and [a] b = 1 as two keys; for us they are one.
    for path, count in Counter(path for path, _ in values).items():
        if count > 1:
            raise UsageError(f"{file}: {path} is set twice", "remove one: it is written both quoted and as a table")
    origin = SettingOrigin("file", file)
    return [Setting(path, value, origin) for path, value in values]


def _check_owner(opened: BinaryIO) -> None:
    """Refuse a `DEFAULT_FILE` that another user can have written: its `command:` keys would run as ours."""
    file = os.fstat(opened.fileno())
    # Whoever owns a link decides which file it leads to.
    link = os.lstat(DEFAULT_FILE)
    for status in (file, link):
        if status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"./{DEFAULT_FILE} belongs to user {status.st_uid}", _EXPLICIT)
    is_for_others = file.st_mode & stat.S_IWOTH
    is_for_group = file.st_mode & stat.S_IWGRP
    is_other_group = file.st_gid not in (0, os.getegid())
    if is_for_others or (is_for_group and is_other_group):
        raise UsageError(f"./{DEFAULT_FILE} can be written by other users", f"{_EXPLICIT}, or chmod go-w it")


def settings_of_environment(environ: Mapping[str, str]) -> list[Setting]:
    """Return the settings of variables, each with its variable as its origin. Unknown keys are not refused here."""
    paths = {}
    for key in KEYS.values():
        words = key.path.upper().replace(".", "_")
        paths[f"KBACKUP_{words}"] = key.path
    settings = []
    for name, value in sorted(environ.items()):
        if not value or not name.startswith("KBACKUP_"):
            continue
        if name in VARIABLES or _NOT_OURS.search(name):
            continue
        path = paths.get(name) or _property_path(name)
        settings.append(Setting(path, value, SettingOrigin("environment", name)))
    return settings


def _property_path(name: str) -> str:
    """Return the path of a variable that is no key: KBACKUP_SOURCE_SASL_PASSWORD is source.sasl.password.

    Other names become the path of an unknown key, which is refused later, if possible with the section that is meant.
    """
    first, _, rest = name.removeprefix("KBACKUP_").lower().partition("_")
    if first in _CLIENTS:
        return f"{first}.{rest.replace('_', '.')}"
    sections = [*SECTIONS, *_CLIENTS]
    near = difflib.get_close_matches(first, sections, n=1, cutoff=0.8)
    if near and rest:
        return f"{first}.{rest}"
    return f"{first}_{rest}".rstrip("_")


def _from_clients(files: ConfigFiles, kind: Literal["environment", "flag"]) -> tuple[list[Setting], tuple[str, ...]]:
    settings: list[Setting] = []
    notes: tuple[str, ...] = ()
    for section, file in (("source", files.source), ("target", files.target)):
        if not file:
            continue
        client = load_client_properties(file)
        origin_name = f"--{section}-config {file}" if kind == "flag" else file
        origin = SettingOrigin(kind, origin_name)
        for name, value in client.properties.items():
            settings.append(Setting(f"{section}.{name}", value, origin))
        notes += client.notes
    return settings, notes


def _merge(settings: Iterable[Setting], environ: Mapping[str, str]) -> dict[tuple[str, str | None], Setting]:
    """Return the setting that wins for each (key path, name within a table), resolved and converted. All settings are
    checked, also the ones that don't win."""
    merged: dict[tuple[str, str | None], Setting] = {}
    for path, written, origin in settings:
        key, name = locate(path, str(origin))
        value = resolve(written, f"{origin}: {path}", environ)
        if key.kind != "table":
            converted = convert(key, value, str(origin))
            merged[key.path, None] = Setting(key.path, converted, origin)
            continue
        named = {name: value} if name is not None else entries(key, value, str(origin))
        is_verbatim = "${" not in str(written)
        for entry, item in named.items():
            if key.path in _CLIENTS:
                entry = _client_entry(key.path, entry, origin)
            entry_path = f"{key.path}.{entry}"
            text = property_text(entry_path, item, str(origin))
            if key.path in _CLIENTS:
                check_client_property(entry_path, text, verbatim=is_verbatim, where=str(origin))
            merged[key.path, entry] = Setting(entry_path, text, origin)
    return merged


def _client_entry(section: str, name: str, origin: SettingOrigin) -> str:
    """Return the one name that a client's property has here. Raises `UsageError` for a property that kbackup sets."""
    if name in CONTROLLED:
        raise UsageError(f"{origin}: {section}.{name} is kbackup's own to set", CONTROLLED[name])
    return ALIASES.get(name, name)


def _build(merged: Mapping[tuple[str, str | None], Setting]) -> Config:
    values: dict[str, Any] = {}
    for (path, name), setting in merged.items():
        section, _, field = path.rpartition(".")
        fields = values.setdefault(section, {}) if section else values
        if name is None:
            fields[field] = setting.value
        else:
            fields.setdefault(field, {})[name] = setting.value
    stores = {}
    for name, model in STORES.items():
        options = values.pop(name, {})
        stores[name] = msgspec.convert(options, model, strict=True)
    without_stores = msgspec.convert(values, Config, strict=True)
    config = msgspec.structs.replace(without_stores, stores=stores)
    # Raises `UsageError` for properties of sources that don't go together.
    _ = config.sources
    return config


def settings_in_effect(loaded: Loaded) -> list[Setting]:
    """Return every key's value and every entry of the tables, in the order of `KEYS`. Secrets are as they are."""
    settings = []
    for key in KEYS.values():
        section, _, field = key.path.rpartition(".")
        model = loaded.config.section(section) if section else loaded.config
        value = getattr(model, field)
        if key.kind != "table":
            settings.append(Setting(key.path, value, loaded.origins[key.path]))
            continue
        for name in sorted(value):
            path = f"{key.path}.{name}"
            settings.append(Setting(path, value[name], loaded.origins[path]))
    return settings
