"""Who is let in, and what every answer says to the browser. An ASGI middleware in front of all pages.

- Only GET and HEAD, and a POST of the token: there is nothing to be written.
- The Host header must be one of ours: a page of somebody else's whose name was made to point here (DNS rebinding) has
  another one. Addresses are no names, so they always pass.
- Where a token is asked for, it comes once, by the form of the page that asks or as `?token=…`, and is exchanged for a
  cookie; or with every request as `Authorization: Bearer …`. Over TLS the cookie is `Secure`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
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
"""A page for (request, status, what, hint)."""


@dataclass(frozen=True)
class Access:
    """`names` are host names in lower case under which browsers may come; `token` None asks for none."""

    names: frozenset[str]
    token: str | None = None
    cookie: str = "kbackup-ui"

    @property
    def pass_(self) -> str:
        """The cookie's value: it holds as long as the token does, and does not tell it."""
        return hmac.new((self.token or "").encode(), b"kbackup ui", hashlib.sha256).hexdigest()

    def knows_host(self, host: str) -> bool:
        name = _name_of(host)
        return _is_address(name) or name in self.names or name.endswith(".localhost")

    def opens(self, given: str | None) -> bool:
        return self.token is None or (
            given is not None and secrets.compare_digest(given.encode(), self.token.encode())
        )

    def admits(self, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        return (
            self.token is None
            or (kind.lower() == "bearer" and self.opens(bearer.strip()))
            or any(secrets.compare_digest(c.encode(), self.pass_.encode()) for c in self._cookies(headers))
        )

    def _cookies(self, headers: Headers) -> Iterable[str]:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return []
        return [found.value] if found is not None else []


class Guard:
    def __init__(
        self, app: ASGIApp, access: Access, refuse: Refusal, entered: Callable[[Scope, str], Response]
    ) -> None:
        """`entered` is the page that leads on to a path once the token was right."""
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
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            form = await _read_form(receive) if scope["method"] == "POST" else ""
            await (self._answer(scope, form) or self._app)(scope, receive, secured)
        except Exception:
            if not begun:
                raise
            # it has been answered and logged: the server would print a traceback

    def _answer(self, scope: Scope, form: str) -> Response | None:
        """What is said in place of a page; `form` is what a POST sent."""
        headers, method = Headers(scope=scope), scope["method"]
        if not self._access.knows_host(headers.get("host", "")):
            return self._refuse(
                scope,
                421,
                "this page is not served under that name",
                "come by the address that 'kbackup ui' printed, or name the host in ui.hosts",
            )
        if headers.get("sec-fetch-site") == "cross-site" and (
            method == "POST" or headers.get("sec-fetch-mode") != "navigate"
        ):
            return self._refuse(scope, 403, "another site asked for this", "open the page by itself")
        query = scope["query_string"].decode("latin-1")
        if method == "POST" and self._access.token is not None and _tokens_in(form):
            return self._enter(scope, _tokens_in(form)[-1], query)
        if method not in ("GET", "HEAD"):
            refused = self._refuse(
                scope, 405, "nothing can be changed here", "pages are there to be looked at"
            )
            refused.headers["allow"] = "GET, HEAD"
            return refused
        if self._access.token is None or scope["path"].startswith(STATIC):
            return None
        if _tokens_in(query):
            return self._enter(scope, _tokens_in(query)[-1], query)
        return None if self._access.admits(headers) else self._lock(scope, "this page asks for its token")

    def _enter(self, scope: Scope, token: str, query: str) -> Response:
        """Exchanges a token for a cookie, and leads on to the address without it."""
        if not self._access.opens(token):
            return self._lock(scope, "that is not the token")
        rest = urlencode([(k, v) for k, v in parse_qsl(query, keep_blank_values=True) if k != "token"])
        page = self._entered(scope, f"?{rest}" if rest else "")
        page.set_cookie(
            self._access.cookie,
            self._access.pass_,
            httponly=True,
            samesite="strict",
            secure=_is_over_tls(scope),
        )
        return page

    def _lock(self, scope: Scope, message: str) -> Response:
        return self._refuse(
            scope, 401, message, "it is in the address that 'kbackup ui' printed, or your own ui.token"
        )


async def _read_form(receive: Receive) -> str:
    """The body of a request; '' where it is longer than a token's form can be, or breaks off."""
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
    """Whether the browser came by TLS, as this server or a proxy before it says. Who makes that up keeps only the own
    cookie from plain HTTP."""
    headers = Headers(scope=scope)
    first = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    forwarded = headers.get("forwarded", "").partition(",")[0].replace('"', "").lower()
    pairs = [pair.strip() for pair in forwarded.split(";")]
    return scope["scheme"] == "https" or first == "https" or "proto=https" in pairs


def _name_of(host: str) -> str:
    """Of a Host header: without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
