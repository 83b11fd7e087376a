"""The questions of `kbackup init`, and the configuration that the answers make."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import click

from kbackup.cli.init.schedule import KINDS, Kind, Schedule, parse_at
from kbackup.config import KEYS, Config, ConfigFiles, Setting, SettingOrigin, exposes_secret, load
from kbackup.config.values import convert
from kbackup.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_HEAD = "# Written by kbackup init. All keys: kbackup config --keys\n"


def toml_text(settings: Mapping[str, object]) -> str:
    """Return kbackup.toml with values by key path: text, or lists of text."""
    sections: dict[str, list[str]] = {"": []}
    for path, value in settings.items():
        section, dot, name = path.partition(".")
        if not dot:
            section, name = "", path
        sections.setdefault(section, []).append(f"{_key(name)} = {_value(value)}\n")
    lines = sections.pop("")
    return (
        _HEAD
        + "".join(lines)
        + "".join(f"\n[{_key(section)}]\n{''.join(entries)}" for section, entries in sections.items())
    )


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_string(str(item)) for item in value)}]"
    return _string(str(value))


def _string(text: str) -> str:
    """Return a basic string of TOML, which has the escapes of JSON, and one more character to escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# The configuration that `kbackup init` is about to write.


_ORIGIN = SettingOrigin("option", "kbackup init")
_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")


@dataclass
class ConfigDraft:
    """`settings` are values as they are written, by key path; an empty value is not written. `environ` also has the
    secrets that were typed for a trial."""

    settings: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def of(cls, settings: Iterable[Setting]) -> ConfigDraft:
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
        return load(settings, ConfigFiles(config=os.devnull), self.environ).config

    def variables(self) -> list[str]:
        """Return the variables that values refer to."""
        return sorted({name for path in self.settings for name in _VARIABLE.findall(self.text(path))})


# The questions of `kbackup init`. Each shows the present answer and changes the draft.


T = TypeVar("T")

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_REFERENCE = re.compile(r"\$?\{?(env|file):([^}]+)\}?")


def ask_cluster(draft: ConfigDraft) -> None:
    click.echo("\nThe cluster to back up", err=True)
    _ask_key(draft, "source.bootstrap.servers", "Brokers (host:port, with commas between)", required=True)
    protocol = _ask_choice(draft, "source.security.protocol", "Security protocol", _PROTOCOLS)
    if protocol.endswith("SSL"):
        _ask_key(draft, "source.ssl.ca.location", "PEM file of the CA (empty: the system's certificates)")
    else:
        draft.remove_all("source.ssl.")
    if not protocol.startswith("SASL"):
        draft.remove_all("source.sasl.")
        return
    _ask_choice(draft, "source.sasl.mechanism", "SASL mechanism", _MECHANISMS)
    _ask_key(draft, "source.sasl.username", "User", required=True)
    _ask_secret(draft, "source.sasl.password", "env:KAFKA_PASSWORD")


def ask_archive(draft: ConfigDraft) -> None:
    click.echo("\nThe archive", err=True)
    _ask_key(draft, "archive", "Address (s3://bucket/prefix or a path)", required=True)
    if not draft.text("archive").startswith("s3://"):
        draft.remove_all("s3.")
        return
    _ask_key(draft, "s3.endpoint_url", "URL of the S3 server (empty: AWS)")
    _ask_key(draft, "s3.region", "Region (empty: as AWS's tools find it)")
    _ask_key(draft, "s3.access_key_id", "Access key (empty: as AWS's tools find credentials)")
    if draft.text("s3.access_key_id"):
        _ask_secret(draft, "s3.secret_access_key", "env:S3_SECRET_ACCESS_KEY")
    else:
        draft.put("s3.secret_access_key", "")


def ask_selection(draft: ConfigDraft) -> None:
    click.echo(
        "\nWhat to back up: names or /regular expressions/, with commas between. '-' removes an answer.", err=True
    )
    _ask_key(draft, "backup.topics", "Topics (empty: all but internal ones)")
    _ask_key(draft, "backup.exclude_topics", "Topics to exclude")
    _ask_key(draft, "backup.groups", "Consumer groups (empty: all)")
    _ask_key(draft, "backup.exclude_groups", "Consumer groups to exclude")


def ask_schedule(kind: Kind, at: str, image: str) -> Schedule:
    click.echo("\nThe nightly run", err=True)
    word = _choice("Run it by", kind, KINDS)
    chosen = next(each for each in KINDS if each == word)
    moment = parse_at(at) if chosen == "none" else _prompt("Time of the day", at, parse_at)
    if chosen == "kubernetes":
        image = _prompt("Repository of kbackup's image", image or None, str.strip)
    return Schedule(chosen, moment, image)


def ask_correct() -> bool:
    """Return whether to correct the answers that failed; else they are kept."""
    return _choice("Correct the answers or keep them?", "correct", ("correct", "keep")) == "correct"


def ask_overwrite(path: Path) -> bool:
    return click.confirm(f"{path} exists. Overwrite it?", err=True)


def _ask_key(draft: ConfigDraft, path: str, question: str, required: bool = False) -> None:
    """Ask for the value of a key; '-' removes an optional one."""

    def put(answer: str) -> None:
        draft.put(path, "" if answer.strip() == "-" and not required else answer.strip())

    _prompt(question, draft.text(path) or (None if required else ""), put)


def _ask_choice(draft: ConfigDraft, path: str, question: str, choices: Sequence[str]) -> str:
    present = draft.text(path) or choices[0]
    known = choices if present in choices else (*choices, present)
    draft.put(path, _choice(question, present, known))
    return draft.text(path)


def _ask_secret(draft: ConfigDraft, path: str, default: str) -> None:
    """Ask where a secret is. That of a variable which is not set is asked for, and used for trials alone."""
    present = _REFERENCE.fullmatch(draft.text(path))
    question = f"Where is {path.partition('.')[2]} (env:NAME or file:/path)"
    kind, name = _prompt(question, present[0] if present else default, _parse_reference)
    draft.put(path, f"${{{kind}:{name}}}")
    if kind == "env" and not draft.environ.get(name):
        value = _prompt(f"{name} is not set here; its value, which is not written", None, str, hide_input=True)
        draft.environ[name] = value


def _parse_reference(text: str) -> tuple[str, str]:
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            "the file holds no secrets", "write env:NAME for a variable, or file:/path for a file with the secret"
        )
    return match[1], match[2]


def _prompt(question: str, default: str | None, parse: Callable[[str], T], *, hide_input: bool = False) -> T:
    """Ask on stderr, as stdout has data alone, until `parse` accepts the answer."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    answer: T = click.prompt(
        question, default=default, show_default=bool(default), value_proc=parsed, hide_input=hide_input, err=True
    )
    return answer


def _choice(question: str, default: str, choices: Sequence[str]) -> str:
    """Ask for one of several words."""

    def parse(text: str) -> str:
        words = [word for word in choices if word.lower() == text.strip().lower()]
        if not words:
            raise UsageError(f"{text} is none of {', '.join(choices)}", "give one of these words")
        return words[0]

    return _prompt(f"{question} ({', '.join(choices)})", default, parse)
