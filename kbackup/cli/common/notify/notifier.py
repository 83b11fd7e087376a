"""Send the result of a run to the webhook of `notify.url`. A failed delivery is a warning, and no error."""

from __future__ import annotations

import logging
from typing import Any

from kbackup.cli.common.notify.notification import Body, Notification, notification_of
from kbackup.cli.common.notify.webhook import UndeliveredError, Webhook
from kbackup.cli.common.output import Reporter
from kbackup.config import Config
from kbackup.config.secrets import without_userinfo
from kbackup.errors import EXIT_LOSS, EXIT_OK, KbackupError
from kbackup.metrics.registry import counted
from kbackup.util.text import shorten

log = logging.getLogger(__name__)

COMMANDS = frozenset(
    (
        *("backup", "restore", "verify", "drill", "check", "status", "copy", "expire", "repair", "adopt"),
        *("export", "groups apply", "groups undo", "key rotate", "migrate archive", "mirror run"),
    )
)
"""The commands that run a job. Others only show something, or change one name."""
_NAMED = 3


class Notifier:
    """Notifies of the events in `notify.on`. Raises `UsageError` for an invalid URL or template."""

    def __init__(self, config: Config, command: str) -> None:
        self._webhook = Webhook(config.notify.url, config.notify.headers)
        self._body = Body(config.notify.body)
        self._events = frozenset(config.notify.on)
        self._command, self._archive = command, without_userinfo(config.archive or "")

    def run_ended(self, exit_code: int, reporter: Reporter | None, error: KbackupError | None) -> None:
        """Notify of the end of a command, with the report that it printed or would print."""
        output = reporter or Reporter()
        self._send(
            notification_of(
                self._command,
                self._archive,
                exit_code,
                summary="" if error is not None else _summary(output, exit_code),
                warnings=tuple(output.warnings),
                error=error,
                report=output.report,
            )
        )

    def round_failed(self, error: KbackupError) -> None:
        """Notify of the first failed round of a process that tries again."""
        self._send(notification_of(self._command, self._archive, error.exit_code, error=error))

    def rounds_recovered(self) -> None:
        self._send(notification_of(self._command, self._archive, EXIT_OK, summary="the rounds succeed again"))

    def records_lost(self, messages: tuple[str, ...], report: object) -> None:
        """Notify of the losses of one round."""
        self._send(
            notification_of(
                self._command,
                self._archive,
                EXIT_LOSS,
                summary=messages[0],
                warnings=messages,
                report=report,
            )
        )

    def _send(self, notification: Notification) -> None:
        if notification.event not in self._events:
            return
        try:
            self._webhook.deliver(self._body.render(notification))
        except (UndeliveredError, KeyboardInterrupt) as error:
            log.warning(
                "%s", error if isinstance(error, UndeliveredError) else "the notification was interrupted"
            )
            counted.add("kbackup_notifications_total", 1, "failed")
        else:
            counted.add("kbackup_notifications_total", 1, "delivered")


def _summary(output: Reporter, exit_code: int) -> str:
    """Return the last line of a command, after the first losses or warnings where the result is a loss."""
    if exit_code != EXIT_LOSS or not output.warnings:
        return output.summary
    losses_first = sorted(output.warnings, key=lambda text: not text.startswith("loss: "))
    return f"{shorten(losses_first, _NAMED, '; ')}; {output.summary}"


def notifier_for(config: Config, command: str, parameters: dict[str, Any]) -> Notifier | None:
    """Return the notifier of a command; None without `notify.url`, for other commands, and for dry runs.

    `parameters` are the values of the command's own options."""
    is_dry = parameters.get("dry_run") or parameters.get("confirm") is False or parameters.get("nagios")
    if not config.notify.url or command not in COMMANDS or is_dry:
        return None
    return Notifier(config, command)
