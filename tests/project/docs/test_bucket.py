"""Delete each object, and compare the effects with infra/docs/what-is-in-the-bucket.md."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError, NoArchiveError
from kbackup.jobs.repair import repair
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.base import Store
from tests.project.docs.documents import ROOT
from tests.support.archives import make_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "infra" / "docs" / "what-is-in-the-bucket.md").read_text("utf-8")
ROWS: dict[str, str] = dict(re.findall(r"^\| `([^`]+/[^`]*|[a-z]+\.json)` \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE))
KEYS = [
    "archive.json",
    "lock.json",
    "catalog/0000000001.json",
    "catalog/0000000004.json",
    "catalog/latest.json",
    "derived.json",
    *(f"tables/{number:010d}-<token>-{table}.parquet" for number in (2, 4) for table in range(3)),
    *(f"points/{number:010d}-<run>/{name}.json" for number in (1, 2) for name in ("groups", "manifest", "metadata")),
    "topics/orders/segment_partition_000_from_offset_0000000000_records",
    "topics/orders/segment_partition_000_from_offset_0000000000_index",
    "topics/orders/index_partition_000",
    "topics/orders/consumer_offsets_partition_000",
]
"""One of each kind that backups leave; of the catalogs the first and the newest, and every table."""
NEWEST = ("archive.json", "catalog/0000000004.json", "points/0000000002-<run>/manifest.json")
"""Without these, nothing opens at the newest restore point."""


def row(key: str) -> str:
    """Return the effect of a missing key as the page describes it."""
    for name, fate in ROWS.items():
        pattern = re.escape(name).replace("…", ".+")
        if re.fullmatch(re.sub(r"<\w+>", "[^/]+", pattern), key):
            return fate
    raise AssertionError(f"{key} is not on the page")


def findings(store: Store) -> list[str]:
    """Hints of what `kbackup verify --quick` finds."""

    return [found.hint for found in verify(store, "all", True, no_session, Silent()).findings]


def no_session() -> SparkSession:
    raise AssertionError


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bucket") / "archive"
    make_archive(open_store(str(folder)))
    assert findings(open_store(str(folder))) == []
    return folder


@pytest.mark.parametrize("name", KEYS)
def test_deleted_objects_have_the_documented_effect(name: str, archive: Path, tmp_path: Path) -> None:
    store = open_store(str(shutil.copytree(archive, tmp_path / "archive")))
    key = key_of(store, name)
    assert store.delete([key]) == []
    fate, rows = row(key), findings(store)
    if fate.startswith("harmless"):
        assert rows == []
    elif fate.startswith("made again"):
        (hint,) = rows
        assert "follows from" in hint or "does without it" in hint
    else:
        assert fate.startswith("lost")
        (hint,) = rows
        assert "another copy" in hint
    opens = name not in NEWEST and not refers_to_points(store, key)
    try:
        open_archive(store).restore_point("latest")
    except (CorruptError, NoArchiveError):
        assert not opens
    else:
        assert opens


@pytest.mark.parametrize("name", [name for name in KEYS if name.startswith("tables/")])
def test_repair_brings_back_what_a_table_held(name: str, archive: Path, tmp_path: Path) -> None:
    """Both restore points, with all their records. What only older catalogs refer to is found until they are swept."""
    store = open_store(str(shutil.copytree(archive, tmp_path / "archive")))
    before = points_of(store)
    assert store.delete([key_of(store, name)]) == []
    repair(store, True, False, 60, no_session, Silent())
    assert points_of(store) == before
    expire(store, Expiry(Policy(), None, timedelta(0)), 60, Silent(), confirm=True)
    assert findings(store) == []
    assert points_of(store) == before


def points_of(store: Store) -> dict[int, set[tuple[str, int, int, int]]]:
    archive = open_archive(store)
    return {
        p.number: {(s.key, s.first, s.last, s.count) for s in archive.segments(archive.manifest(p))}
        for p in archive.restore_points
    }


def refers_to_points(store: Store, key: str) -> bool:
    """Return whether `key` is a chunk of the newest catalog's table of restore points."""
    return any(f'"points": [\n   {{\n    "key": "{key}"' in text for text in newest_catalog(store))


def newest_catalog(store: Store) -> list[str]:
    keys = [e.key for e in store.list(layout.CATALOG) if layout.parse_catalog_key(e.key) is not None]
    return [store.get(max(keys)).decode()]


def key_of(store: Store, name: str) -> str:
    """The key of an object whose token or run stands in angle brackets."""
    pattern = re.sub(r"<\w+>", "[0-9a-f]+", re.escape(name))
    (key,) = [entry.key for entry in store.list() if re.fullmatch(pattern, entry.key)]
    return key


def test_every_kind_of_object_is_on_the_page() -> None:
    roots = {
        value
        for name, value in vars(layout).items()
        if name.isupper() and isinstance(value, str) and (value.endswith("/") or name in ("ARCHIVE", "LOCK", "DERIVED"))
    }
    told = {name.partition("/")[0] + ("/" if "/" in name else "") for name in ROWS}
    assert roots <= told
    assert {layout.LATEST, "catalog/<n>.json"} <= ROWS.keys()
    for part in (layout.MANIFEST, layout.GROUPS, layout.METADATA):
        assert f"points/<n>-<run>/{part}" in ROWS


def test_the_listing_is_in_order_and_told_of() -> None:
    (listing,) = re.findall(r"```\n(archive\.json\n.*?)```", PAGE, re.DOTALL)
    keys = listing.split()
    assert keys == sorted(keys)
    for key in keys:
        row(key.replace("…", "x") if key != "catalog/…" else "catalog/0000000003.json")
