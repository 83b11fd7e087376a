"""Pages of an archive: only reads, safe, and with hostile names as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from kbackup.jobs.mirror.flow import write_status
from kbackup.jobs.mirror.status import first_status
from kbackup.metadata.entities import Znode
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.web.app import ROUTERS, make_pages
from kbackup.web.archive_cache import ArchiveCache
from tests.support.archives import commit_point, make_archive
from tests.support.faulty_store import FaultyStore
from tests.support.mirrors import flow_of
from tests.support.pages import WRITES
from tests.support.rich_archive import ATTACK, GROUPS, SCRIPT
from tests.support.visits import crawl, links, tags, text, visit


def test_there_are_only_reads(rich: Store) -> None:
    """Of all routes; what is sent otherwise is refused before any of them."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert len(make_pages(ArchiveCache(rich), lambda settings, *flags: "").routes) == len(ROUTERS) + 1, (
        "and the static files"
    )
    assert len(routes) == sum(len(router.routes) for router in ROUTERS) == 22
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


def test_flows_of_mirrors(rich: Store) -> None:
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


def test_an_archive_without_mirrors(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    client = visit(store)
    assert "No flow of this archive has begun" in text(client.get("/mirrors").text)
    assert not {"/mirrors", "/migration"} & {*links(client.get("/").text)}


def test_migration_by_archived_znodes(tmp_path: Path) -> None:
    """Of a restore point before the migration and of one within; older ones hold no znodes."""
    store = FileStore(tmp_path / "archive")
    archive = make_archive(store)
    assert "None of the newest 20 restore points" in text(visit(store).get("/migration").text)
    of_kraft = Znode(path="/controller", content='{"brokerid": 3000, "kraftControllerEpoch": 5}')
    copied = Znode(path="/migration", content='{"kraft_metadata_offset": 99}')
    of_zookeeper = Znode(path="/controller", content='{"brokerid": 1, "kraftControllerEpoch": -1}')
    assert archive.head is not None
    topics = archive.head.topics
    for number, znodes in ((3, (of_zookeeper,)), (4, (of_kraft, copied))):
        commit_point(archive, number, topics, [], [], znodes=znodes)
    client = visit(store)
    assert "/migration" in links(client.get("/").text)
    shown = text(client.get("/migration").text)
    assert "dual write or brokers moved or finished" in shown
    assert "/controller is KRaft controller 3000, /migration at offset 99, 0 brokers with ZooKeeper" in shown
    assert "/controller is broker 1, no /migration" in shown
    assert "kbackup migrate status" in shown


def test_flow_that_has_applied_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    archive = make_archive(store)
    write_status(store, first_status(flow_of(), archive.info.id, None))
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
