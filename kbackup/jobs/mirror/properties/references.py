"""Resolve references to values, `${env:NAME}` and `${file:/path:key}`, as Kafka's config providers do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kbackup.config.properties import parse_properties
from kbackup.errors import UsageError

_PROVIDERS = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider."
_CLASSES = {
    f"{_PACKAGE}EnvVarConfigProvider": "env",
    f"{_PACKAGE}FileConfigProvider": "file",
    f"{_PACKAGE}DirectoryConfigProvider": "directory",
}


@dataclass(frozen=True)
class References:
    """Replaces references in values. `kinds` are the names of providers: `env` and `file` are always there."""

    file: str
    kinds: Mapping[str, str]
    environ: Mapping[str, str]

    def resolve(self, value: str, key: str) -> str:
        """Return `value` with every reference replaced. Raise `UsageError`, which shows no value, where one leads
        nowhere."""
        pattern = r"\$\{(" + "|".join(map(re.escape, self.kinds)) + r"):([^}]*)\}"
        where = f"{self.file}: {key}"

        def replace(match: re.Match[str]) -> str:
            return _READERS[self.kinds[match[1]]](self, match[2], where)

        return re.sub(pattern, replace, value)

    def _variable(self, name: str, where: str) -> str:
        name = name.removeprefix(":")
        if name not in self.environ:
            raise UsageError(f"{where}: the environment variable {name} is not set", "set the variable")
        return self.environ[name]

    def _from_file(self, location: str, where: str) -> str:
        """Return the value of a key in a properties file for `path:key`, and the whole text for `path` alone."""
        path, colon, key = location.rpartition(":")
        if not colon:
            return _text(location, where)
        values = parse_properties(_bytes(path, where), path)
        if key not in values:
            raise UsageError(f"{where}: the file {path} has no key {key}", "name a key of the file")
        return values[key]

    def _from_directory(self, location: str, where: str) -> str:
        path, _, name = location.rpartition(":")
        return _text(str(Path(path) / name), where)


def references_of(raw: Mapping[str, str], file: str, environ: Mapping[str, str]) -> References:
    """Return the resolver of the references of a file, by its `config.providers`."""
    kinds = {"env": "env", "file": "file"}
    for name in filter(None, re.split(r"\s*,\s*", raw.get(_PROVIDERS, "").strip())):
        key = f"{_PROVIDERS}.{name}.class"
        provider = raw.get(key, "").strip()
        if provider not in _CLASSES:
            raise UsageError(
                f"{file}: {key}: {provider or 'no class'} can't be used here",
                f"name one of {', '.join(_CLASSES)}",
            )
        kinds[name] = _CLASSES[provider]
    return References(file, kinds, environ)


def _bytes(path: str, where: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{where}: can't read the file {path}: {(error.strerror or '').lower()}", "name a readable file"
        ) from None


def _text(path: str, where: str) -> str:
    try:
        return _bytes(path, where).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the file {path} is not UTF-8 text", "name a text file") from None


_READERS: dict[str, Callable[[References, str, str], str]] = {
    "env": References._variable,
    "file": References._from_file,
    "directory": References._from_directory,
}
