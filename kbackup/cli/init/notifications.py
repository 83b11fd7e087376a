"""Try the webhook of a configuration that is being written."""

from __future__ import annotations

from kbackup.cli.common.notify import RequestBody, Webhook, notification_of
from kbackup.errors import EXIT_OK, KbackupError, without_credentials
from kbackup.jobs.check import Configured, Steps
from kbackup.util.plain_http import warn_of_plain_http

_TEST = "a test by kbackup init: the messages of failed backups come here"


def try_webhook(steps: Steps, configured: Configured) -> None:
    """Send a message of success to the webhook, if there is one."""
    try:
        config = configured()
    except KbackupError as error:
        steps.fail("configuration", error)
        return
    if not config.notify.url:
        return
    with steps.trying("notifications") as step:
        webhook = Webhook(config.notify.url, config.notify.headers)
        warn_of_plain_http("notify.url, itself a secret,", config.notify.url)
        body = RequestBody(config.notify.body)
        archive = without_credentials(config.archive or "")
        webhook.deliver(body.render(notification_of("init", archive, EXIT_OK, summary=_TEST)))
        step.detail = "the webhook took a test message"
