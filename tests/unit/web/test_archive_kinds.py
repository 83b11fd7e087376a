"""Pages of encrypted archives, of folders of the Java tool, and of an archive without a restore point."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.run import open_or_create
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import make_archive
from tests.support.browsing import encrypting
from tests.support.faulty_store import FaultyStore
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.pages import WRITES
from tests.support.rich_archive import ATTACK
from tests.support.visits import crawl, text, visit


def test_encrypted_archives(tmp_path: Path) -> None:
    store = encrypting(FileStore(tmp_path / "archive"), tmp_path)
    make_archive(store)
    client = visit(store)
    for topic in ("orders", "clicks"):
        assert client.get(f"/topics/{topic}/0/records/5/value").content == b"value 5 of 0 " * 6


def test_a_folder_of_the_java_tool() -> None:
    store = FaultyStore(FileStore(JAVA / "archive"))
    seen = {}
    for address, status, html in crawl(visit(store), of_a_kind=1):
        assert status in (200, 303), f"{address}: {text(html)}"
        seen[address] = html
    assert "A folder of the Java tool" in text(seen["/"])
    assert any("/records/" in address for address in seen)
    assert not WRITES & {operation for operation, _ in store.calls}
    assert visit(store).get("/diff").status_code == 404
    assert visit(store).get("/points/1").status_code == 404


@pytest.mark.exhaustive
def test_a_folder_that_a_killed_sink_left(tmp_path: Path) -> None:
    client = visit(FileStore(torn_folder(tmp_path / "java")))
    said = text(client.get("/").text)
    assert all(f"file {file} {what.strip()}" in said for file, what in FLAWS.items())
    for _, status, html in crawl(client, of_a_kind=2):
        assert status in (200, 303), text(html)
    last = "/topics/audit_log/0/records/19/value"
    read = client.get(last)
    assert read.status_code == 200
    assert read.content == visit(FileStore(JAVA / "archive")).get(last).content


@pytest.mark.exhaustive
def test_topics_of_a_java_folder_may_have_any_name(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    source = FileStore(JAVA / "archive")
    name = f"{ATTACK} ?#&"  # Starlette's client takes %2F for a slash, browsers don't
    topic = next(iter(source.list_dirs()))
    for entry in source.list(f"{topic}/"):
        store.put(f"{name}/{entry.key.partition('/')[2]}", source.get(entry.key))
    client = visit(store)
    pages = {address: html for address, status, html in crawl(client) if status == 200}
    assert any(address.endswith("/records") for address in pages)
    assert all("<img" not in html for html in pages.values())


def test_an_archive_without_a_restore_point(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    open_or_create(store)
    client = visit(store)
    assert "no restore point yet" in text(client.get("/").text)
    assert client.get("/topics").status_code == 404
    assert client.get("/growth").status_code == 404


def test_head_is_get_without_the_body(rich: Store) -> None:
    client = visit(rich)
    for address in ("/", "/topics", "/topics/odd/0/records/0/value"):
        head = client.head(address)
        assert (head.status_code, head.content) == (200, b"")
