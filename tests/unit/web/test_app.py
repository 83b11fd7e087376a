"""The application: admission of requests, errors, and all pages: only reads, safe, with hostile names as text."""

from __future__ import annotations

import random
import re
from dataclasses import fields
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute

from kbackup.archive.reader import open_archive
from kbackup.metadata.entities import Znode
from kbackup.mirror.flow import write_status
from kbackup.mirror.status import first_status
from kbackup.store.base import Store
from kbackup.web.app import make_pages, routers
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.guard import POLICY, Access
from kbackup.web.pages.search import SearchForm
from tests.support.archives import commit_point
from tests.support.faulty_store import FaultyStore
from tests.support.flow_maps import flow_of
from tests.support.rich_archive import ATTACK, GROUPS, SCRIPT
from tests.support.secrets import make
from tests.support.visits import WRITES, cells_without_their_column, crawl, links, tags, text, visit

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


KNOWN = "localhost:8484 LOCALHOST localhost. kbackup.localhost 127.0.0.1:8484 [::1]:8484 192.168.1.7"
UNKNOWN = "evil.example.com evil-localhost 127.0.0.1.evil.com backups.example.com.evil.com ["
HOSTS = [*KNOWN.split(), "backups.example.com:443", *UNKNOWN.split(), ""]


@pytest.mark.parametrize("host", HOSTS)
def test_a_page_is_served_under_known_host_names_alone(rich: Store, host: str) -> None:
    access = Access(frozenset({"localhost", "backups.example.com"}))
    known = host not in (*UNKNOWN.split(), "")
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
    assert visit(rich).get("/topics?token=whatever").status_code == 200, "no token is asked for where there is none"
    client = visit(rich, TOKEN)
    assert client.get("/topics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    for wrong in (f"Basic {TOKEN}", "Bearer ", f"Bearer {TOKEN}x", "Bearer ü"):
        given = {b"authorization": wrong.encode("latin-1")}
        assert client.get("/topics", headers=given).status_code == 401


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


# Errors of pages keep the navigation and what was entered; no address is an internal error.


@pytest.mark.parametrize(
    ("address", "shown", "kept"),
    [
        ("/topics/orders/0/records?n=20&offset=abc", {"offset": "abc"}, {"n": "20"}),
        ("/topics/orders/0/records?time=soon&point=2", {"time": "soon"}, {"point": "2"}),
        ("/topics/orders/0/records?view=xml", {"view": "xml"}, {}),
        ("/diff?a=1&b=99", {"a": "1", "b": "99"}, {}),
        ("/group?name=nobody", {"name": "nobody"}, {}),
        ("/topics?point=77&q=ord", {"point": "77"}, {"q": "ord"}),
    ],
)
def test_an_error_keeps_what_was_entered(
    rich: Store, address: str, shown: dict[str, str], kept: dict[str, str]
) -> None:
    page = visit(rich).get(address).text
    fields = [a for tag, a in tags(page) if tag == "input"]
    assert {a["name"]: a["value"] for a in fields if a.get("type") != "hidden"} == shown
    assert {a["name"]: a["value"] for a in fields if a.get("type") == "hidden"} == kept
    ((_, form),) = [each for each in tags(page) if each[0] == "form" and each[1].get("method") != "dialog"]
    assert "action" not in form, "where it came from"


@pytest.mark.exhaustive
@pytest.mark.parametrize("address", ["/nothing", "/topics/nope", "/points/77", "/group?name=nobody", "/diff?a=1&b=99"])
def test_an_error_keeps_the_navigation(rich: Store, address: str) -> None:
    client = visit(rich)
    sign = "&" if "?" in address else "?"
    for point, stays in (("", ""), ("2", "?point=2"), ("77", ""), ("x", "")):
        page = client.get(f"{address}{sign}point={point}" if point else address).text
        for there in ("/topics", "/groups", "/growth", "/diff"):
            assert f"{there}{stays}" in links(page)
            assert client.get(f"{there}{stays}").status_code == 200


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/nothing", 404, "there is no such page"),
        ("/points/77", 404, "there is no restore point 77"),
        ("/points/x", 404, "there is no restore point x"),
        ("/topics?point=77", 404, "there is no restore point 77"),
        ("/topics/nope", 404, "there is no topic nope in restore point 7"),
        ("/topics/orders/7", 404, "topic orders has no partition 7"),
        ("/topics/orders/x", 404, "number can't be x"),
        ("/topics/orders/0/records/100000", 404, "there is no record at offset 100000 of orders-0"),
        ("/topics/orders/0/records?offset=abc", 400, "abc is not an offset"),
        ("/topics/orders/0/records?time=soon", 400, "soon is not a time"),
        ("/topics/orders/0/records?n=100000", 400, "n can't be 100000"),
        ("/topics/orders/0/records?view=xml", 400, "view can't be xml"),
        ("/topics?page=-1", 400, "page can't be -1"),
        ("/group?name=nobody", 404, "there is no group nobody"),
        ("/diff?a=1&b=99", 404, "there is no restore point 99"),
        ("/static/../app.py", 404, ""),
        ("/static/%2e%2e/app.py", 404, ""),
    ],
)
def test_missing_pages_and_invalid_parameters_are_error_pages(
    rich: Store, address: str, status: int, message: str
) -> None:
    answer = visit(rich).get(address)
    assert answer.status_code == status
    assert message in text(answer.text)
    assert "Traceback" not in answer.text


ODDITIES = [
    *("", "0", "-1", str(2**63 - 1), str(2**63), "9" * 30, "abc", "1e3", "1_000", "\u0663", "\u00b2", " 5 "),
    *("\0", "%00", "<script>", "..", "a" * 3000, "\U0001f600", "latest", "2h ago", "now", "1e400 ago", "9999-12-31"),
]


@pytest.mark.exhaustive
def test_no_address_is_an_internal_error(rich: Store) -> None:
    chance = random.Random(1)
    routes = [route.path for router in routers() for route in router.routes if isinstance(route, APIRoute)]
    names = [
        *("point", "page", "q", "sort", "offset", "before", "time", "start", "last", "n", "view", "to_time", "range"),
        *("topic", "map_regex", "map_from", "map_to", "group", "no_groups", "go", "name", "a", "in", "upto"),
        *(field.name for field in fields(SearchForm)),
    ]
    client = visit(rich)
    for _ in range(600):
        known = chance.choice(routes).replace("{name}", "odd") if chance.random() < 0.7 else chance.choice(routes)
        path = re.sub(r"\{\w+\}", lambda _: quote(chance.choice(ODDITIES), safe=""), known)
        query = {chance.choice(names): chance.choice(ODDITIES) for _ in range(chance.randrange(4))}
        answer = client.get(path, params=query)
        assert answer.status_code in (200, 303, 400, 404), f"{path} {query}: {text(answer.text)}"


# Pages of an archive: only reads, safe, and with hostile names as text.


def test_there_are_only_reads(rich: Store) -> None:
    """Of all routes; what is sent otherwise is refused before any of them."""
    routes = [route for router in routers() for route in router.routes if isinstance(route, APIRoute)]
    assert len(make_pages(ArchiveCache(rich), lambda settings, *flags: "").routes) == len(routers()) + 1, (
        "and the static files"
    )
    assert len(routes) == sum(len(router.routes) for router in routers()) == 29
    assert all(route.methods == {"GET", "HEAD"} for route in routes)
    client = visit(rich)
    for route in routes:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            refused = client.request(method, re.sub(r"\{\w+\}", "0", route.path))
            assert refused.status_code == 405
            assert refused.headers["allow"] == "GET, HEAD"


@pytest.mark.exhaustive
def test_every_page_is_there_and_safe(rich: Store) -> None:
    """Each link leads somewhere; nothing is code that should be text, nothing is from elsewhere, nothing is written."""
    store = FaultyStore(rich)
    seen: dict[str, str] = {}
    for address, status, html in crawl(visit(store), of_a_kind=1):
        assert status in (200, 303), f"{address}: {text(html)}"
        seen[re.sub(r"\?.*|\d+", "", address)] = html
        for link in links(html):
            assert link.startswith("/") or link == "#main", link
        for tag, attributes in tags(html):
            assert tag not in ("img", "iframe", "object", "style"), address
            assert (tag == "script") == ("src" in attributes), address
            assert not [name for name in attributes if name.startswith("on") or name == "style"], address
    assert {"/", "/points/", "/topics", "/topics/orders", "/topics/orders/", "/topics/orders//records", "/groups"} <= {
        *seen
    }
    assert {"/group", "/growth", "/diff", "/topics/odd//records/", "/topics/odd//records//value"} <= {*seen}
    assert not WRITES & {operation for operation, _ in store.calls}


def test_the_page_of_mirrors_shows_what_troubles_a_flow(rich: Store) -> None:
    shown = text(visit(rich).get("/mirrors").text)
    troubled, even = shown.split("A → B")
    assert ATTACK in troubled
    assert "last round failed" in troubled
    assert f"acls: no authorizer {SCRIPT}" in troubled
    assert f"3 records lost {ATTACK}" in troubled
    assert "1 topic held back" in troubled
    assert f"is held back: the target refused it {SCRIPT}" in troubled
    assert "up to date" in even
    assert "held back" not in even.replace("records behindheld back", "").replace("records behind held back", "")


def test_an_archive_without_mirrors(store: Store) -> None:
    client = visit(store)
    assert "This archive is not mirrored" in text(client.get("/mirrors").text)
    assert not {"/mirrors", "/migration"} & {*links(client.get("/").text)}


def test_migration_by_archived_znodes(store: Store) -> None:
    """Of a restore point before the migration and of one within; older ones hold no znodes."""
    archive = open_archive(store)
    assert "None of the newest 20 restore points" in text(visit(store).get("/migration").text)
    of_kraft = Znode(path="/controller", content='{"brokerid": 3000, "kraftControllerEpoch": 5}')
    copied = Znode(path="/migration", content='{"kraft_metadata_offset": 99}')
    of_zookeeper = Znode(path="/controller", content='{"brokerid": 1, "kraftControllerEpoch": -1}')
    assert archive.head is not None
    topics = archive.head.topics
    for number, znodes in ((3, (of_zookeeper,)), (4, (of_kraft, copied))):
        commit_point(archive, number, topics=topics, znodes=znodes)
    client = visit(store)
    assert "/migration" in links(client.get("/").text)
    shown = text(client.get("/migration").text)
    assert "dual write or brokers moved or finished" in shown
    assert "/controller is KRaft controller 3000, /migration at offset 99, 0 brokers with ZooKeeper" in shown
    assert "/controller is broker 1, no /migration" in shown
    assert "kbackup migrate status" in shown


def test_flow_that_has_applied_nothing(store: Store) -> None:
    write_status(store, first_status(flow_of(), open_archive(store).info.id, None))
    shown = text(visit(store).get("/mirrors").text)
    assert "A → B" in shown
    assert "up to date" not in shown
    assert re.search(r"records behind\s*\u2013", shown)
    assert re.search(r"last round\s*\u2013", shown)


def test_hostile_names_are_text(rich: Store) -> None:
    client = visit(rich)
    groups = client.get("/groups").text
    for name in GROUPS:
        shown = name.replace("\u202e", "\\u202e") or "(no name)"
        assert shown.replace(" ", "") in text(groups).replace(" ", ""), "whole, though not all of it is visible"
        own = client.get("/group", params={"name": name})
        assert own.status_code == 200
        assert shown in text(own.text)
    assert SCRIPT in text(client.get("/points/1").text + client.get("/groups?point=1").text)
    assert ATTACK in text(client.get("/").text)
    assert client.get("/topics", params={"q": SCRIPT}).text.count("<script") == 2, "the page's own"
    wild = client.get(f"/topics/{ATTACK}")
    assert wild.status_code == 404
    assert f"there is no topic {ATTACK}" in text(wild.text)


@pytest.mark.exhaustive
def test_each_cell_of_a_card_names_its_column(rich: Store) -> None:
    """On a phone a row of a table is a card, whose cells stand below each other without headings."""
    tables = 0
    for address, _, html in crawl(visit(rich), of_a_kind=1):
        tables += html.count('<table class="cards')
        assert cells_without_their_column(html) == [], address
    assert tables > 10
