"""A notification: the result of a run, as the JSON object that a webhook receives."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from string import Template
from typing import Literal

import msgspec

from kbackup import __version__
from kbackup.cli.common.output import json_text
from kbackup.errors import EXIT_LOSS, EXIT_OK, KbackupError, UsageError
from kbackup.util.times import now

Event = Literal["failure", "loss", "success"]


@dataclass(frozen=True, kw_only=True)
class RunError:
    """The error that ended a run or a round."""

    type: str
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Notification:
    """The result of a run. `summary` is one line for people; `report` is what the command prints with `--json`."""

    event: Event
    command: str
    archive: str
    exit_code: int
    summary: str
    host: str
    at: str
    version: str
    warnings: tuple[str, ...]
    error: RunError | None
    report: object

    def json(self) -> str:
        return _json(self)


def notification_of(
    command: str,
    archive: str,
    exit_code: int,
    *,
    summary: str = "",
    warnings: tuple[str, ...] = (),
    error: KbackupError | None = None,
    report: object = None,
) -> Notification:
    """Return the notification of a result on this machine at this moment. An error without a summary is the summary."""
    return Notification(
        event="success" if exit_code == EXIT_OK else "loss" if exit_code == EXIT_LOSS else "failure",
        command=command,
        archive=archive,
        exit_code=exit_code,
        summary=summary or (str(error) if error is not None else ""),
        host=socket.gethostname(),
        at=now(),
        version=__version__,
        warnings=warnings,
        error=RunError(type=type(error).__name__, message=error.message, hint=error.hint) if error else None,
        report=report,
    )


_TEXTS = ("event", "command", "archive", "exit_code", "summary", "host", "at", "version")
_DOCUMENTS = ("report", "notification")
_NAMES = ", ".join(f"${name}" for name in (*_TEXTS, "warnings", *_DOCUMENTS))


class Body:
    """The body of a request: a notification as JSON, or a template of JSON.

    Texts stand within the template's quotes, so they are escaped; `$report` and `$notification` are whole JSON values.
    Raises `UsageError` for an unknown name, and for a template that makes no JSON."""

    def __init__(self, template: str) -> None:
        self._template = Template(template) if template else None
        try:
            for sample in _SAMPLES:
                json.loads(self.render(sample))
        except (KeyError, ValueError) as error:
            why = f"it has no value {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(
                f"notify.body makes no JSON: {why}", f"use {_NAMES} in a JSON text, and $$ for a dollar sign"
            ) from None

    def render(self, notification: Notification) -> str:
        if self._template is None:
            return notification.json()
        texts = {name: _escaped(str(getattr(notification, name))) for name in _TEXTS}
        return self._template.substitute(
            texts,
            warnings=_escaped("\n".join(notification.warnings)),
            report=_json(notification.report),
            notification=notification.json(),
        )


def _json(value: object) -> str:
    return json_text(msgspec.to_builtins(value, str_keys=True), indent=-1)


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


_HOSTILE = 'quoted "name" \\ of\ntwo lines \x1b[0m, $event and \udcff'
_SAMPLES = (
    notification_of("backup", "s3://bucket/archive", EXIT_OK),
    notification_of(
        "backup",
        _HOSTILE,
        EXIT_LOSS,
        summary=_HOSTILE,
        warnings=(_HOSTILE, "loss: one"),
        error=KbackupError(_HOSTILE, f"check {_HOSTILE}"),
        report={"losses": [{"message": _HOSTILE, "offset": 1}], "warnings": [_HOSTILE], _HOSTILE: None},
    ),
)
"""An empty notification and a full one: a template may make JSON of one of them alone."""
