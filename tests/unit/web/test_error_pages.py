"""Errors of pages keep the navigation and what was entered; no address is an internal error."""

from __future__ import annotations

import random
import re
from dataclasses import fields
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute

from kbackup.store.base import Store
from kbackup.web.app import ROUTERS
from kbackup.web.pages.records import SearchForm
from tests.support.visits import links, tags, text, visit


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
    routes = [route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    names = (
        "point",
        "page",
        "q",
        "sort",
        "offset",
        "before",
        "time",
        "start",
        "last",
        "n",
        "view",
        "to_time",
        "range",
        "topic",
        "map_regex",
        "map_from",
        "map_to",
        "group",
        "no_groups",
        "go",
        "name",
        "a",
        "in",
        "upto",
        *(field.name for field in fields(SearchForm)),
    )
    client = visit(rich)
    for _ in range(600):
        known = chance.choice(routes).replace("{name}", "odd") if chance.random() < 0.7 else chance.choice(routes)
        path = re.sub(r"\{\w+\}", lambda _: quote(chance.choice(ODDITIES), safe=""), known)
        query = {chance.choice(names): chance.choice(ODDITIES) for _ in range(chance.randrange(4))}
        answer = client.get(path, params=query)
        assert answer.status_code in (200, 303, 400, 404), f"{path} {query}: {text(answer.text)}"
