"""Admission of requests."""

from __future__ import annotations

import pytest

from kbackup.store.base import Store
from kbackup.web.guard import POLICY, Access
from tests.support.secrets import make
from tests.support.visits import tags, text, visit

TOKEN = make("the web page's token")
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.mark.parametrize(
    "address",
    ["/", "/nothing", "/topics?page=x", "/topics/odd/0/records/0/value", "/static/page.js", "/topics?token=wrong"],
)
def test_every_answer_has_security_headers(rich: Store, address: str) -> None:
    for client in (visit(rich), visit(rich, TOKEN)):
        headers = client.get(address).headers
        assert {name: headers[name] for name in SECURITY} == SECURITY
        forever = "public, max-age=31536000, immutable"
        assert headers["cache-control"] == (forever if address.startswith("/static") else "no-store")
        assert "server" not in headers


def test_the_policy_allows_no_inline_code() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert {rules[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:8484", True),
        ("LOCALHOST", True),
        ("localhost.", True),
        ("kbackup.localhost", True),
        ("127.0.0.1:8484", True),
        ("[::1]:8484", True),
        ("192.168.1.7", True),
        ("backups.example.com:443", True),
        ("evil.example.com", False),
        ("evil-localhost", False),
        ("127.0.0.1.evil.com", False),
        ("backups.example.com.evil.com", False),
        ("", False),
        ("[", False),
    ],
)
def test_names(rich: Store, host: str, known: bool) -> None:
    access = Access(frozenset({"localhost", "backups.example.com"}))
    assert access.knows_host(host) == known
    if host and not known:
        answer = visit(rich).get("/", headers={"host": host})
        assert answer.status_code == 421
        assert "orders" not in answer.text


def test_other_sites_are_refused(rich: Store) -> None:
    client = visit(rich)
    cross = {"sec-fetch-site": "cross-site"}
    assert client.get("/", headers=cross | {"sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/static/page.js", headers=cross | {"sec-fetch-mode": "cors"}).status_code == 403
    assert client.get("/", headers=cross | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code == 200


def test_without_the_token_there_is_nothing(rich: Store) -> None:
    client = visit(rich, TOKEN)
    for address in ("/", "/topics", "/topics/orders/0/records/0/value", "/nothing", "/?token=wrong", "/?token="):
        answer = client.get(address)
        assert answer.status_code == 401
        assert "orders" not in answer.text
        assert rich.url not in answer.text
        assert not client.cookies
    assert "this page needs a token" in text(client.get("/").text)
    assert "this token is wrong" in text(client.get("/?token=wrong").text)
    assert client.get("/static/style.css").status_code == 200, "the page that asks for it looks like one"
    for address in ("/static/nothing", "/static/../topics", "/static/%2e%2e/topics"):
        outside = client.get(f"http://testserver{address}")
        assert outside.status_code in (401, 404)
        assert rich.url not in outside.text


def test_the_token_is_exchanged_for_a_cookie(rich: Store) -> None:
    client = visit(rich, TOKEN)
    entered = client.get("/topics", params={"q": "a&b", "token": TOKEN})
    assert entered.status_code == 200
    assert '<meta http-equiv="refresh" content="0;url=/topics?q=a%26b">' in entered.text
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "max-age" not in cookie
    assert TOKEN not in entered.text + entered.headers["set-cookie"]
    assert client.get("/topics").status_code == 200
    assert TOKEN not in client.get("/topics").text
    client.cookies.set("kbackup-ui", "0" * 64, domain="testserver.local")
    client.cookies.clear()
    client.cookies.set("kbackup-ui", "0" * 64)
    assert client.get("/topics").status_code == 401


def test_the_way_in_leads_nowhere_else(rich: Store) -> None:
    entered = visit(rich, TOKEN).get("http://testserver//evil.example.com/x?token=" + TOKEN)
    assert "url=/evil.example.com/x" in entered.text


def test_scripts_send_it_along(rich: Store) -> None:
    client = visit(rich, TOKEN)
    assert client.get("/topics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    for wrong in (f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN}x", "Bearer ü"):
        given = {b"authorization": wrong.encode("latin-1")}
        assert client.get("/topics", headers=given).status_code == 401


def test_no_token_is_asked_for_where_there_is_none(rich: Store) -> None:
    assert visit(rich).get("/topics?token=whatever").status_code == 200


def test_the_form_sends_the_token_in_its_body(rich: Store) -> None:
    """An address stays in histories and in logs of proxies."""
    client = visit(rich, TOKEN)
    ((_, form),) = [tag for tag in tags(client.get("/topics?q=a%26b").text) if tag[0] == "form"]
    assert (form["method"], "action" in form) == ("post", False)
    entered = client.post("/topics?q=a%26b&token=wrong", data={"token": TOKEN})
    assert entered.status_code == 200
    assert "url=/topics?q=a%26b" in entered.text
    assert TOKEN not in entered.text + entered.headers["set-cookie"]
    assert client.get("/topics").status_code == 200


def test_other_forms_are_refused(rich: Store) -> None:
    client = visit(rich, TOKEN)
    wrong = client.post("/", data={"token": "wrong"})
    assert (wrong.status_code, "this token is wrong" in text(wrong.text)) == (401, True)
    other_site = client.post("/", data={"token": TOKEN}, headers={"sec-fetch-site": "cross-site"})
    assert other_site.status_code == 403
    assert client.post("/", data={"token": TOKEN, "more": "x" * 5000}).status_code == 405
    assert client.post("/", data={"name": "x"}).status_code == 405
    assert client.put("/", data={"token": TOKEN}).status_code == 405
    assert client.post("/", data={"token": TOKEN}, headers={"host": "evil.example.com"}).status_code == 421
    assert not client.cookies


@pytest.mark.parametrize(
    ("headers", "secure"),
    [
        ({}, False),
        ({"x-forwarded-proto": "http"}, False),
        ({"x-forwarded-proto": "https"}, True),
        ({"x-forwarded-proto": "HTTPS, http"}, True),
        ({"x-forwarded-proto": "http, https"}, False),
        ({"forwarded": 'for=10.0.0.1;proto="https", for=10.0.0.2;proto=http'}, True),
        ({"forwarded": "for=10.0.0.1;proto=http"}, False),
    ],
)
def test_over_tls_the_cookie_is_secure(rich: Store, headers: dict[str, str], secure: bool) -> None:
    for entered in (
        visit(rich, TOKEN).get("/", params={"token": TOKEN}, headers=headers),
        visit(rich, TOKEN).post("/", data={"token": TOKEN}, headers=headers),
    ):
        assert ("; secure" in entered.headers["set-cookie"].lower()) == secure
