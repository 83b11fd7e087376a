"""Who is let in, and what every answer says to the browser. An ASGI middleware in front of all pages.

- Only GET and HEAD: there is nothing to be written.
- The Host header must be one of ours: a page of somebody else's whose name was made to point here (DNS rebinding) has
  another one. Addresses are no names, so they always pass.
- Where a token is asked for, it comes once as `?token=…`, which is exchanged for a cookie, or with every request as
  `Authorization: Bearer …`.
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
            await (self._answer(scope) or self._app)(scope, receive, secured)
        except Exception:
            if not begun:
                raise
            # it has been answered and logged: the server would print a traceback

    def _answer(self, scope: Scope) -> Response | None:
        """What is said in place of a page."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            refused = self._refuse(
                scope, 405, "nothing can be changed here", "pages are there to be looked at"
            )
            refused.headers["allow"] = "GET, HEAD"
            return refused
        if not self._access.knows_host(headers.get("host", "")):
            return self._refuse(
                scope,
                421,
                "this page is not served under that name",
                "come by the address that 'kbackup ui' printed, or name the host in ui.hosts",
            )
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return self._refuse(scope, 403, "another site asked for this", "open the page by itself")
        return None if scope["path"].startswith(STATIC) else self._let_in(scope, headers)

    def _let_in(self, scope: Scope, headers: Headers) -> Response | None:
        if self._access.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and self._access.opens(given[-1]):
            left = urlencode([(name, value) for name, value in query if name != "token"])
            page = self._entered(scope, f"?{left}" if left else "")
            page.set_cookie(self._access.cookie, self._access.pass_, httponly=True, samesite="strict")
            return page
        if not given and self._access.admits(headers):
            return None
        said = "that is not the token" if given else "this page asks for its token"
        return self._refuse(
            scope, 401, said, "it is in the address that 'kbackup ui' printed, or your own ui.token"
        )


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
