"""Send a JSON text to a webhook. Its URL is a secret: no message names it."""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from kbackup import __version__
from kbackup.config import HIDDEN
from kbackup.errors import KbackupError, UsageError
from kbackup.util.attempts import attempts

_TIMEOUT = 5.0
_TRY_AGAIN = (408, 425, 429)


class UndeliveredError(KbackupError):
    """A webhook did not take a notification."""

    default_hint = "check notify.url and notify.headers"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an error: following it would turn the request into a GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


class Webhook:
    """A webhook. Raises `UsageError` for an address that is no URL of HTTP.

    All attempts of a delivery take at most `seconds`, with a `pause` between them."""

    seconds = 15.0
    pause = 1.0

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "notify.url is not the URL of a webhook", "write it as https://hooks.example.com/path"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._url = urlunsplit(parts._replace(netloc=f"{host}:{port}" if port else host, fragment=""))
        self._headers = {"Content-Type": "application/json", "User-Agent": f"kbackup/{__version__}"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._headers |= headers

    def deliver(self, body: str) -> None:
        """Send `body`, again where another answer may come. Raises `UndeliveredError`."""
        end = time.monotonic() + self.seconds
        reason = ""
        for _ in attempts(self.seconds, self.pause):
            try:
                self._send(body, max(0.5, min(_TIMEOUT, end - time.monotonic())))
            except urllib.error.HTTPError as answer:
                reason = f"it answered HTTP {answer.code}"
                answer.close()
                if answer.code < 500 and answer.code not in _TRY_AGAIN:
                    break
            except (OSError, http.client.HTTPException) as error:
                reason = self._hide(str(getattr(error, "reason", error)) or type(error).__name__)
            except ValueError as error:  # an invalid header: its text would show the value
                reason = f"the request is invalid ({type(error).__name__})"
                break
            else:
                return
        raise UndeliveredError(f"the webhook of notify.url took no notification: {reason}")

    def _send(self, body: str, timeout: float) -> None:
        request = urllib.request.Request(  # noqa: S310 (the scheme is checked)
            self._url, body.encode(), self._headers, method="POST"
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout):
            pass

    def _hide(self, text: str) -> str:
        parts = urlsplit(self._url)
        for secret in filter(None, (self._url, parts.path.strip("/"), parts.query)):
            text = text.replace(secret, HIDDEN)
        return text
