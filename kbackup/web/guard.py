"""Admit requests and set security headers: an ASGI middleware in front of all pages.

- Only GET and HEAD, and a POST of the token: the pages change nothing.
- The Host header must be a known name. This stops DNS rebinding: a foreign name that resolves to this address. IP
  addresses always pass.
- A client sends the token once, by the form or as `?token=…`, and gets a cookie; or with every request as
  `Authorization: Bearer …`. Over TLS the cookie is `Secure`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
STORED_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "sandbox allow-same-origin"
)
"""The policy of pages that the archive holds: own styles, no scripts. With an own origin they could not link back."""
_POLICY = "content-security-policy"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
STATIC = "/static/"
_FORM = 4 << 10  # bytes: a token, not a document

Refusal = Callable[[Scope, int, str, str], Response]
"""Returns the page for (request, status, message, hint)."""


@dataclass(frozen=True)
class Access:
    """The rules of access: `names` are allowed host names in lower case; without a `token`, everybody is admitted."""

    names: frozenset[str]
    token: str | None = None
    cookie: str = "kbackup-ui"

    @property
    def pass_(self) -> str:
        """The cookie's value: valid as long as the token, which it does not reveal."""
        return hmac.new((self.token or "").encode(), b"kbackup ui", hashlib.sha256).hexdigest()

    def knows_host(self, host: str) -> bool:
        """Return whether a Host header has a known name or any IP address."""
        name = host.partition(":")[0].rstrip(".").lower()
        if host.startswith("["):  # an IPv6 address, which has colons of its own
            name = host[1:].partition("]")[0].lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names or name.endswith(".localhost")
        return True

    def opens(self, given: str | None) -> bool:
        """Return whether a token is the right one."""
        if self.token is None:
            return True
        # In constant time: how long it takes must not tell how many characters are right.
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def admits(self, headers: Headers) -> bool:
        """Return whether a request has the token, or the cookie of who gave the token before."""
        if self.token is None:
            return True
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.opens(bearer.strip()):
            return True
        cookie = self._cookie_in(headers)
        return secrets.compare_digest(cookie.encode(), self.pass_.encode())

    def _cookie_in(self, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            cookie = None
        return cookie.value if cookie is not None else ""


class Guard:
    """Answers requests that may not pass, and passes the others on to the pages."""

    def __init__(
        self, app: ASGIApp, access: Access, refuse: Refusal, entered: Callable[[Scope, str], Response]
    ) -> None:
        """`entered` returns the page that leads to a path after the right token."""
        self._app, self._access, self._refuse, self._entered = app, access, refuse, entered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        begun = False

        async def secured(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                stored = headers.get(_POLICY) == STORED_POLICY
                headers.update(HEADERS)
                if stored:
                    headers[_POLICY] = STORED_POLICY
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            form = await _read_form(receive) if scope["method"] == "POST" else ""
            await (self._answer(scope, form) or self._app)(scope, receive, secured)
        except Exception:
            if not begun:
                raise
            # the error is answered and logged: raising would make the server print a traceback

    def _answer(self, scope: Scope, form: str) -> Response | None:
        """Return the response that replaces a page, or None; `form` is the body of a POST."""
        headers, method = Headers(scope=scope), scope["method"]
        if not self._access.knows_host(headers.get("host", "")):
            hint = "use the address that 'kbackup ui' printed, or add the host to ui.hosts"
            return self._refuse(scope, 421, "this page is not served under that host name", hint)
        if headers.get("sec-fetch-site") == "cross-site" and (
            method == "POST" or headers.get("sec-fetch-mode") != "navigate"
        ):
            return self._refuse(scope, 403, "another site sent this request", "open the address of the page itself")
        query = scope["query_string"].decode("latin-1")
        if method == "POST" and self._access.token is not None and (tokens := _tokens_in(form)):
            return self._enter(scope, tokens[-1], query)
        if method not in ("GET", "HEAD"):
            refused = self._refuse(scope, 405, "the pages change nothing", "use GET")
            refused.headers["allow"] = "GET, HEAD"
            return refused
        if self._access.token is None or scope["path"].startswith(STATIC):
            return None
        tokens = _tokens_in(query)
        if tokens:
            return self._enter(scope, tokens[-1], query)
        if not self._access.admits(headers):
            return self._lock(scope, "this page needs a token")
        return None

    def _enter(self, scope: Scope, token: str, query: str) -> Response:
        """Exchange a token for a cookie, and lead to the address without the token."""
        if not self._access.opens(token):
            return self._lock(scope, "this token is wrong")
        parameters = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "token"]
        rest = urlencode(parameters)
        page = self._entered(scope, f"?{rest}" if rest else "")
        cookie, pass_ = self._access.cookie, self._access.pass_
        page.set_cookie(cookie, pass_, httponly=True, samesite="strict", secure=_is_over_tls(scope))
        return page

    def _lock(self, scope: Scope, message: str) -> Response:
        return self._refuse(scope, 401, message, "give the token in the address that 'kbackup ui' printed, or ui.token")


async def _read_form(receive: Receive) -> str:
    """Return the body of a request; '' if it breaks off or is longer than the form of a token."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if message["type"] == "http.disconnect" or len(body) > _FORM:
            return ""
    return body.decode("latin-1")


def _tokens_in(query: str) -> list[str]:
    return [value for name, value in parse_qsl(query, keep_blank_values=True) if name == "token"]


def _is_over_tls(scope: Scope) -> bool:
    """Return whether the browser uses TLS, to this server or to a proxy.

    A client that forges this only keeps its own cookie from plain HTTP."""
    headers = Headers(scope=scope)
    first = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    forwarded = headers.get("forwarded", "").partition(",")[0].replace('"', "").lower()
    pairs = [pair.strip() for pair in forwarded.split(";")]
    return scope["scheme"] == "https" or first == "https" or "proto=https" in pairs
