"""References in the values of a properties file: to the environment and to files, as Kafka's providers have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbackup.config.clients import parse_properties
from kbackup.errors import UsageError

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
        where = f"{self.file}: {key}"

        def replace(match: re.Match[str]) -> str:
            kind, location = self.kinds[match[1]], match[2]
            if kind == "env":
                variable = location.removeprefix(":")
                if variable not in self.environ:
                    raise UsageError(f"{where}: the environment variable {variable} is not set", "set the variable")
                return self.environ[variable]
            path, colon, name = location.rpartition(":")
            if kind == "directory":
                return _text(str(Path(path) / name), where)
            if not colon:
                return _text(location, where)
            values = parse_properties(_bytes(path, where), path)
            if name not in values:
                raise UsageError(f"{where}: the file {path} has no key {name}", "name a key of the file")
            return values[name]

        # Only known providers: Kafka leaves `${...}` of others as it is.
        providers = "|".join(re.escape(kind) for kind in self.kinds)
        return re.sub(rf"\$\{{({providers}):([^}}]*)\}}", replace, value)


def references_of(raw: Mapping[str, str], file: str, environ: Mapping[str, str]) -> References:
    """Return the resolver of the references of a file, by its `config.providers`."""
    kinds = {"env": "env", "file": "file"}
    for name in list_items(raw.get("config.providers", "")):
        key = f"config.providers.{name}.class"
        provider = raw.get(key, "").strip()
        if provider not in _CLASSES:
            raise UsageError(
                f"{file}: {key}: {provider or 'no class'} can't be used here", f"name one of {', '.join(_CLASSES)}"
            )
        kinds[name] = _CLASSES[provider]
    return References(file, kinds, environ)


def list_items(text: str) -> list[str]:
    """Return the items of a list with commas between."""
    items = re.split(r"\s*,\s*", text.strip())
    return [item for item in items if item]


def _bytes(path: str, where: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        why = (error.strerror or "").lower()
        raise UsageError(f"{where}: can't read the file {path}: {why}", "name a readable file") from None


def _text(path: str, where: str) -> str:
    try:
        text = _bytes(path, where).decode()
        return text.removesuffix("\n").removesuffix("\r")  # an editor's line end is no part of a secret
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the file {path} is not UTF-8 text", "name a text file") from None
