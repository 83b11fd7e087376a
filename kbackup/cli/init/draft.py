"""The configuration that `kbackup init` is about to write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kbackup.config import KEYS, Config, Files, Origin, Setting, exposes_secret, load
from kbackup.config.values import convert
from kbackup.errors import UsageError

_ORIGIN = Origin("option", "kbackup init")
_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")


@dataclass
class Draft:
    """`settings` are values as they are written, by key path; an empty value is not written. `environ` also has the
    secrets that were typed for a trial."""

    settings: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def of(cls, settings: Iterable[Setting]) -> Draft:
        """Return the draft of flags. Raises `UsageError` for a secret: the file holds references to secrets alone."""
        draft = cls()
        for path, value, _ in settings:
            if exposes_secret(path, value):
                raise UsageError(
                    f"{path} is a secret, which is not written to a file",
                    "name where it is: ${env:NAME} or ${file:/path}",
                )
            draft.settings[path] = value
        return draft

    def text(self, path: str) -> str:
        """Return the value of a key as text; "" if it has none."""
        value = self.settings.get(path, "")
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    def put(self, path: str, text: str) -> None:
        """Set a key; an empty text removes it. Raises `UsageError` for an invalid value."""
        if not text:
            self.settings.pop(path, None)
        elif path in KEYS:
            value = convert(KEYS[path], text, str(_ORIGIN))
            self.settings[path] = list(value) if isinstance(value, tuple) else text
        else:
            self.settings[path] = text

    def remove_all(self, prefix: str) -> None:
        """Remove the keys that begin with a prefix."""
        self.settings = {path: value for path, value in self.settings.items() if not path.startswith(prefix)}

    def config(self) -> Config:
        """Return the configuration of the draft. Raises `UsageError` for an invalid value."""
        settings = [Setting(path, value, _ORIGIN) for path, value in self.settings.items()]
        return load(settings, Files(config=os.devnull), self.environ).config

    def variables(self) -> list[str]:
        """Return the variables that values refer to."""
        return sorted({name for path in self.settings for name in _VARIABLE.findall(self.text(path))})
