"""The configuration to write: its draft, its text and its files."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbackup.config import KEYS, Config, ConfigFiles, Setting, SettingOrigin, exposes_secret, load
from kbackup.config.keys import locate
from kbackup.config.load import settings_of_environment
from kbackup.config.secrets import is_secret
from kbackup.config.values import convert
from kbackup.errors import UsageError
from kbackup.store import registry

_ORIGIN = SettingOrigin("option", "kbackup init")
_VARIABLE = re.compile(r"(?<!\$)\$\{env:([^}]*)\}")
_KEY_VARIABLE = re.compile(r"env:(.+)")
"""How `encryption.key` names a variable."""
CLIENT_FILE = "KBACKUP_SOURCE_CONFIG"
_KERNEL = "KBACKUP_KERNEL"
_OTHER_JOBS = ("target.", "target_schema_registry.", "restore.", "follow.", "ui.")
"""Keys that a nightly backup does not read."""
_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass
class ConfigDraft:
    """`settings` are values as they are written, by key path; an empty value is not written. `environ` also has the
    secrets that were typed for a trial. `kept` are the settings of the environment that stay there: tables."""

    settings: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=os.environ.copy)
    kept: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Iterable[Setting], environ: Mapping[str, str] = os.environ) -> ConfigDraft:
        """Return the draft of flags, and of settings in the environment, which a service won't have.

        Raises `UsageError` for a secret of a flag: the file holds references to secrets alone."""
        draft = cls(environ=dict(environ))
        draft._take_environment()
        for path, value, _ in settings:
            if exposes_secret(path, value):
                raise UsageError(
                    f"{path} is a secret, which is not written to a file",
                    "name where it is: ${env:NAME} or ${file:/path}",
                )
            draft.settings[path] = value
        return draft

    def _take_environment(self) -> None:
        """Take over the settings of KBACKUP_ variables: values as they are, secrets as references to the variables."""
        client_file = self.environ.get(CLIENT_FILE)
        if client_file:
            # A service runs in another folder.
            self.environ[CLIENT_FILE] = str(Path(client_file).absolute())
        for path, value, origin in settings_of_environment(self.environ):
            text = str(value)
            if path.startswith(_OTHER_JOBS):
                continue
            key, entry = locate(path, str(origin))
            if key.kind == "table" and entry is None:
                self.kept.add(origin.name)
            elif exposes_secret(path, text):
                self.settings[path] = f"${{env:{origin.name}}}"
            else:
                self.put(path, text)

    def take_store_variables(self) -> None:
        """Answer the open questions of the archive's store from the environment, as the store's own tools do."""
        try:
            kind = registry.kind_of(self.text("archive"))
        except UsageError:
            # The trial of the archive says so.
            return
        for question in kind.questions:
            path = f"{kind.section}.{question.key}"
            for name in question.variables:
                if self.environ.get(name) and not self.text(path):
                    self.put(path, self.environ[name])

    def text(self, path: str) -> str:
        """Return the value of a key as text; "" if it has none."""
        value = self.settings.get(path, "")
        if isinstance(value, list):
            return ", ".join(str(item) for item in value)
        return str(value)

    def put(self, path: str, text: str) -> None:
        """Set a key; an empty text removes it. Raises `UsageError` for an invalid value."""
        if not text:
            self.settings.pop(path, None)
            return
        value: object = convert(KEYS[path], text, str(_ORIGIN)) if path in KEYS else text
        self.settings[path] = list(value) if isinstance(value, tuple) else text

    def remove_all(self, prefix: str | tuple[str, ...]) -> None:
        """Remove the keys that begin with a prefix, or with one of several."""
        self.settings = {path: value for path, value in self.settings.items() if not path.startswith(prefix)}

    def config(self) -> Config:
        """Return the configuration of the draft. Raises `UsageError` for an invalid value."""
        settings = [Setting(path, value, _ORIGIN) for path, value in self.settings.items()]
        references = self.references()
        environ: dict[str, str] = {}
        for name, value in self.environ.items():
            # Other settings of the environment are answers by now, or were removed.
            if name in references or not name.startswith("KBACKUP_"):
                environ[name] = value
        return load(settings, ConfigFiles(config=os.devnull), environ).config

    def references(self) -> dict[str, bool]:
        """Return the variables that values refer to, or that are settings themselves, and whether each is a secret."""
        names: dict[str, bool] = {}
        for path in self.settings:
            text = self.text(path)
            found = _VARIABLE.findall(text)
            if path == "encryption.key":
                found += _KEY_VARIABLE.findall(text)
            for name in found:
                names[name] = names.get(name, False) or is_secret(path)
        for name in self.kept:
            # A table may have a secret under any name.
            names[name] = True
        for name in (CLIENT_FILE, _KERNEL):
            if self.environ.get(name):
                names[name] = False
        return dict(sorted(names.items()))


def toml_text(settings: Mapping[str, object]) -> str:
    """Return kbackup.toml with values by key path: text, or lists of text."""
    sections: dict[str, list[str]] = {"": []}
    for path, value in settings.items():
        section, dot, name = path.partition(".")
        if not dot:
            section, name = "", path
        if isinstance(value, list | tuple):
            items = ", ".join(_string(str(item)) for item in value)
            text = f"[{items}]"
        else:
            text = _string(str(value))
        sections.setdefault(section, []).append(f"{_key(name)} = {text}\n")
    # Keys without a section come first: after the heading of a section they would belong to the section.
    lines = ["# Written by kbackup init. All keys: kbackup config --keys\n", *sections.pop("")]
    for section, entries in sections.items():
        lines.append(f"\n[{_key(section)}]\n")
        lines += entries
    return "".join(lines)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """Return a basic string of TOML, which has the escapes of JSON, and one more character to escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_files(texts: Mapping[Path, str], replaced: Collection[Path]) -> None:
    """Write files that only their owner reads. After an error or an interrupt none of the new files is there.

    Existing files are replaced only if `replaced` names them. Raises `UsageError` if a file can't be written."""
    drafts: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for path, text in texts.items():
            draft = drafts[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
        for path, draft in drafts.items():
            if path in replaced:
                draft.replace(path)
            else:
                made.append(path)
                _publish(draft, path, made)
    except BaseException as error:
        for path in (*made, *drafts.values()):
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        name = Path(error.filename2 or error.filename or "").name
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{name}: {reason}", "name a file in a folder that you can write") from error


def _publish(draft: Path, path: Path, made: list[Path]) -> None:
    """Give a file its name, unless another file has it."""
    # Renaming the draft would replace a file that has appeared meanwhile; a link does not.
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        made.remove(path)
        raise
    draft.unlink()
