"""Notify a webhook of the result of a run. Its URL is a secret: no message names it."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from string import Template
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from kbackup import __version__
from kbackup.cli.common.output import Reporter, json_text
from kbackup.config import HIDDEN, Config
from kbackup.errors import EXIT_LOSS, EXIT_OK, KbackupError, UsageError, without_credentials
from kbackup.jobs.finding_kinds import loss_finding
from kbackup.metrics.registry import counted
from kbackup.util.plain_http import warn_of_plain_http
from kbackup.util.system import attempts
from kbackup.util.text import join_names, printable
from kbackup.util.times import now

# Why this is Python's own HTTP client: every kind of webhook is one POST of JSON, whose text is a template. urllib
# heeds the proxies of the environment, which urllib3 (of the SDK for S3) does not, and httpx2 and requests are in
# extras only.

_TIMEOUT = 5.0  # s
_TRY_AGAIN = (408, 425, 429)


def _fault_of(url: str) -> str:
    """Return what is wrong with the URL of a webhook, without showing it; "" if nothing is."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "its host or port is invalid"
    # Other schemes are not shown: what stands before "://" may be a part of the secret.
    if parts.scheme in ("ftp", "file", "ws", "wss", "s3"):
        return f"it begins with {parts.scheme}://"
    if parts.scheme not in ("http", "https"):
        return "it begins neither with https:// nor with http://"
    if not parts.hostname:
        return "it has no host"
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return "" if is_plain else "it has a blank or another character of no URL"


class UndeliveredError(KbackupError):
    """A webhook did not take a notification."""

    default_hint = "check notify.url and notify.headers"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes an error of a redirect: following it would turn the request into a GET."""

    def redirect_request(self, *_: object) -> None:
        return None


class Webhook:
    """A webhook. Raises `UsageError` for an address that is no URL of HTTP.

    All attempts of a delivery take at most `seconds`, with a `pause` between them."""

    seconds = 15.0
    pause = 1.0

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        if fault := _fault_of(url):
            hint = "write it as https://hooks.example.com/path"
            raise UsageError(f"notify.url is not the URL of a webhook: {fault}", hint)
        parts = urlsplit(url)
        for name, text in headers.items():
            if not name.isprintable() or not text.isprintable():
                raise UsageError(f"notify.headers.{printable(name)} has a control character", "write it in one line")
        # Without the user and the password of the URL: they go into a header, where no error shows them.
        hostname = parts.hostname or ""
        netloc = f"[{hostname}]" if ":" in hostname else hostname
        if parts.port:
            netloc += f":{parts.port}"
        self._url = urlunsplit(parts._replace(netloc=netloc, fragment=""))
        self._headers = {"Content-Type": "application/json", "User-Agent": f"kbackup/{__version__}"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            encoded = base64.b64encode(pair.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        # The user's own come last: a webhook may want another Content-Type.
        self._headers |= headers

    def deliver(self, body: str) -> None:
        """Send `body`, again where another answer may come. Raises `UndeliveredError`."""
        end = time.monotonic() + self.seconds
        reason = ""
        for _ in attempts(self.seconds, self.pause):
            try:
                request = urllib.request.Request(  # noqa: S310 (the scheme is checked)
                    self._url, body.encode(), self._headers, method="POST"
                )
                remaining = end - time.monotonic()
                timeout = max(0.5, min(_TIMEOUT, remaining))
                opener = urllib.request.build_opener(_NoRedirect)
                with opener.open(request, timeout=timeout):
                    return
            except urllib.error.HTTPError as answer:
                reason = f"it answered HTTP {answer.code}"
                answer.close()
                if answer.code < 500 and answer.code not in _TRY_AGAIN:
                    break  # the same request would get the same answer
            except (OSError, http.client.HTTPException) as error:
                text = str(getattr(error, "reason", error)) or type(error).__name__
                reason = self._hide(text)
            except ValueError as error:
                # An invalid header. The error's text would show its value.
                reason = f"the request is invalid ({type(error).__name__})"
                break
        raise UndeliveredError(f"the webhook of notify.url took no notification: {reason}")

    def _hide(self, text: str) -> str:
        parts = urlsplit(self._url)
        # Webhooks have their secret in the path or in the query; the host may be shown, and helps.
        for secret in (self._url, parts.path.strip("/"), parts.query):
            if secret:
                text = text.replace(secret, HIDDEN)
        return text


# A notification: the result of a run, as the JSON object that a webhook receives.


Notification = dict[str, Any]
_EVENTS = {EXIT_OK: "success", EXIT_LOSS: "loss"}
"""What happened, by exit code; every other exit code is a failure."""


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
    """Return the notification of a result on this machine at this moment.

    `summary` is one line for people; an error without one is the summary. `report` is what the command prints with
    `--json`."""
    failure: dict[str, str] | None = None
    if error is not None:
        failure = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
        summary = summary or str(error)
    return {
        "event": _EVENTS.get(exit_code, "failure"),
        "command": command,
        "archive": archive,
        "exit_code": exit_code,
        "summary": summary,
        "host": socket.gethostname(),
        "at": now(),
        "version": __version__,
        "warnings": warnings,
        "error": failure,
        "report": report,
    }


_TEXTS = ("event", "command", "archive", "exit_code", "summary", "host", "at", "version")
_NAMES = ", ".join(f"${name}" for name in (*_TEXTS, "warnings", "report", "notification"))


class RequestBody:
    """The body of a request: a notification as JSON, or a template of JSON.

    Texts stand within the template's quotes, so they are escaped; `$report` and `$notification` are whole JSON values.
    Raises `UsageError` for an unknown name, and for a template that makes no JSON."""

    def __init__(self, template: str) -> None:
        self._template = Template(template) if template else None
        try:
            # Tried now: at the end of a run of hours it would be too late to mend a template.
            for sample in _SAMPLES:
                json.loads(self.render(sample))
        except (KeyError, ValueError) as error:
            why = f"it has no value {error}" if isinstance(error, KeyError) else str(error)
            hint = f"use {_NAMES} in a JSON text, and $$ for a dollar sign"
            # Without its cause: the template may hold a secret.
            raise UsageError(f"notify.body makes no JSON: {why}", hint) from None

    def render(self, notification: Notification) -> str:
        if self._template is None:
            return _json(notification)
        texts = {name: _escaped(str(notification[name])) for name in _TEXTS}
        return self._template.substitute(
            texts,
            warnings=_escaped("\n".join(notification["warnings"])),
            report=_json(notification["report"]),
            notification=_json(notification),
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
        warnings=(_HOSTILE, loss_finding("one")),
        error=KbackupError(_HOSTILE, f"check {_HOSTILE}"),
        report={"losses": [{"message": _HOSTILE, "offset": 1}], "warnings": [_HOSTILE], _HOSTILE: None},
    ),
)
"""An empty notification and a full one: a template may make JSON of one of them alone."""


# Send the result of a run to the webhook of `notify.url`. A failed delivery is a warning, and no error.


log = logging.getLogger(__name__)

COMMANDS = {
    "backup",
    "restore",
    "verify",
    "drill",
    "check",
    "status",
    "copy",
    "expire",
    "rewrite",
    "repair",
    "adopt",
    "export",
    "groups apply",
    "groups undo",
    "key rotate",
    "migrate archive",
    "mirror run",
}
"""The commands that run a job. Others only show something, or change one name."""
_NAMED = 3  # losses or warnings in a summary


class Notifier:
    """Notifies of the events in `notify.on`. Raises `UsageError` for an invalid URL or template."""

    def __init__(self, config: Config, command: str) -> None:
        self._webhook = Webhook(config.notify.url, config.notify.headers)
        warn_of_plain_http("notify.url, itself a secret,", config.notify.url)
        self._body = RequestBody(config.notify.body)
        self._events = frozenset(config.notify.on)
        self._command, self._archive = command, without_credentials(config.archive or "")

    def run_ended(self, exit_code: int, reporter: Reporter | None, error: KbackupError | None) -> None:
        """Notify of the end of a command, with the report that it printed or would print."""
        output = reporter or Reporter()
        summary = "" if error is not None else _summary(output, exit_code)
        self._send(exit_code, summary=summary, warnings=tuple(output.warnings), error=error, report=output.report)

    def round_failed(self, error: KbackupError) -> None:
        """Notify of the first failed round of a process that tries again."""
        self._send(error.exit_code, error=error)

    def rounds_recovered(self) -> None:
        self._send(EXIT_OK, summary="the rounds succeed again")

    def records_lost(self, messages: tuple[str, ...], report: object) -> None:
        """Notify of the losses of one round."""
        self._send(EXIT_LOSS, summary=messages[0], warnings=messages, report=report)

    def _send(self, exit_code: int, **result: Any) -> None:
        notification = notification_of(self._command, self._archive, exit_code, **result)
        if notification["event"] not in self._events:
            return
        outcome = "failed"
        try:
            body = self._body.render(notification)
            self._webhook.deliver(body)
            outcome = "delivered"
        except UndeliveredError as error:
            log.warning("%s", error)
        except KeyboardInterrupt:
            # The run has its result by now: who interrupts the notification gets that result.
            log.warning("%s", "the notification was interrupted")
        counted.add("kbackup_notifications_total", 1, outcome)


def _summary(output: Reporter, exit_code: int) -> str:
    """Return the last line of a command, after the first losses or warnings where the result is a loss."""
    if exit_code != EXIT_LOSS or not output.warnings:
        return output.summary
    others = [text for text in output.warnings if text not in output.loss_warnings]
    named = join_names([*output.loss_warnings, *others], _NAMED, "; ")
    return f"{named}; {output.summary}"


def notifier_for(config: Config, command: str, parameters: dict[str, Any]) -> Notifier | None:
    """Return the notifier of a command; None without `notify.url`, for other commands, and for dry runs.

    `parameters` are the values of the command's own options."""
    is_dry = parameters.get("dry_run") or parameters.get("confirm") is False or parameters.get("nagios")
    if not config.notify.url or command not in COMMANDS or is_dry:
        return None
    return Notifier(config, command)
