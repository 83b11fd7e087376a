"""Check the promises of `kbackup.store.base` for listings, on every store."""

from __future__ import annotations

import random

from kbackup.store import Store
from tests.contract.contents import fill

AWKWARD = [
    "a-b", "a.b", "a/b", "a/b.c", "a0", "%2F", "%2f/x", "sp ace", "plus+plus", "q?x=1&y", "hash#tag", "'quoted\"",
    "per%cent", "back\\slash", "é", "e\u0301", "日本語/鍵", "\uffee", "\U0001f600", "~tilde", "=", "@2", "A", "UPPER/x",
    "dots...", ".hidden", "a/.b", "tab\there", "<xml>&amp;", "x" * 200,
]  # fmt: skip


def test_listing_more_than_a_page_in_binary_order(store: Store) -> None:
    keys = [*AWKWARD, *(f"many/{n}" for n in range(700)), *(f"many.{n}" for n in range(400))]
    fill(store, random.Random(1).sample(keys, len(keys)))
    keys.sort(key=str.encode)
    found = list(store.list())
    assert [info.key for info in found] == keys
    assert all(info.size == len(info.key.encode()) for info in found)
    assert [info.key for info in store.list(start_after="many.7")] == [k for k in keys if k > "many.7"]
    assert [info.key for info in store.list("many/", "many/5")] == [
        k for k in keys if k.startswith("many/") and k > "many/5"
    ]


def test_listing_awkward_names(store: Store) -> None:
    fill(store, AWKWARD)
    keys = sorted(AWKWARD, key=str.encode)
    prefixes = ["", "a", "a/", "a.", "a/b", "%2", "日", "日本語/", "none", "z/none/", "x" * 150, "many"]
    for prefix in prefixes:
        mine = [key for key in keys if key.startswith(prefix)]
        assert [info.key for info in store.list(prefix)] == mine
        for after in ["", "a", "a/", "a/b", "a/zz", "a.b", "%2G", "é", "\U0010ffff"]:
            assert [info.key for info in store.list(prefix, after)] == [key for key in mine if key > after]
    for key in keys:
        assert store.get(key) == key.encode()
    assert store.delete(keys) == []
    assert list(store.list()) == []


def test_listing_is_lazy(store: Store) -> None:
    fill(store, [f"{n:04}" for n in range(20)])
    listing = store.list()
    store.put("00000", b"")  # nothing is asked before the first object is requested
    assert next(listing).key == "0000"
    assert next(listing).key == "00000"


def test_list_dirs(store: Store) -> None:
    fill(store, ["a/x", "a/y/z", "a-b/x", "a.b", "b/c/d/e", "file", "日本/x", "sp ace/x"])
    assert list(store.list_dirs()) == ["a-b", "a", "b", "sp ace", "日本"]
    assert list(store.list_dirs("a/")) == ["y"]
    assert list(store.list_dirs("b/c/")) == ["d"]
    assert list(store.list_dirs("none/")) == []
    store.delete(["b/c/d/e"])
    assert list(store.list_dirs()) == ["a-b", "a", "sp ace", "日本"]


def test_prefixes_lead_nowhere_else(store: Store) -> None:
    store.put("a", b"")
    for prefix in ("../", "/", "//", "./", "a/../", ".tmp/", "/etc/"):
        assert list(store.list(prefix)) == []
    for prefix in ("../", "/", "./", "/etc/"):
        assert list(store.list_dirs(prefix)) == []
