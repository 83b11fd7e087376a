"""Verification of catalogs and their tables: lost, replayed, or of another archive."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive.catalog.documents import Catalog, Derived, Latest
from kbackup.archive.models import dump, load
from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from tests.support.archives import make_archive
from tests.support.verifications import OTHER, SEGMENT, findings_of, flip, point_folder, run, table_with

pytestmark = pytest.mark.exhaustive(keep=2)


def catalogs(root: Path) -> list[str]:
    """The keys of all catalogs, the newest last."""
    return sorted(f"catalog/{path.name}" for path in (root / "catalog").glob("0*.json"))


def test_a_missing_catalog_in_the_history_and_at_its_end(root: Path, made: Path) -> None:
    for key in catalogs(root):
        (root / key).unlink()
        report = run(root, quick=True)
        assert findings_of(report) == {key: ["is missing"]}
        shutil.copy(made / key, root / key)
    (root / catalogs(root)[-1]).unlink()
    (root / "catalog" / "latest.json").unlink()
    assert list(findings_of(run(root, quick=True))) == catalogs(made)[-1:], "derived.json names it as well"


def test_objects_of_a_lost_catalog_are_orphans(root: Path) -> None:
    (root / catalogs(root)[-1]).unlink()
    report = run(root, quick=True)
    assert report.restore_points == (1,)
    assert {n.what for n in report.notes if n.bytes} == {
        "is an orphan: no catalog that can be read refers to it"
    }


def test_a_replayed_catalog(root: Path) -> None:
    """Each says its own number, and the checksum of the one before it."""
    *_, before, newest = catalogs(root)
    shutil.copy(root / before, root / newest)
    (text,) = findings_of(run(root, quick=True))[newest]
    assert text.startswith("is of catalog ")


def test_a_catalog_of_another_archive(root: Path, tmp_path: Path) -> None:
    make_archive(open_store(str(tmp_path / "other")))
    for key in catalogs(root)[1:3]:
        shutil.copy(tmp_path / "other" / key, root / key)
    messages = findings_of(run(root, quick=True))
    assert list(messages) == catalogs(root)[1:3]
    assert all(text.startswith("belongs to archive ") for (text,) in messages.values())


def rewrite(root: Path, key: str, **changed: Any) -> None:
    """A catalog with other values and a checksum of its own that is right."""
    catalog = load(Catalog, (root / key).read_bytes(), key)
    fields = {name: getattr(catalog, name) for name in catalog.__struct_fields__}
    (root / key).write_bytes(dump(Catalog(**fields | {"checksum": ""} | changed)))


def test_a_catalog_that_the_next_one_does_not_follow(root: Path) -> None:
    key = catalogs(root)[1]
    rewrite(root, key, next_point=77)
    assert findings_of(run(root, quick=True)) == {key: ["is not the catalog that the next one follows"]}


def test_a_table_of_an_earlier_catalog(root: Path) -> None:
    """An undo needs it."""
    store = open_store(str(root))
    newest = open_archive(store).committed.catalog
    assert newest is not None
    now = {ref.key for name in newest.tables.__struct_fields__ for ref in getattr(newest.tables, name)}
    key = min(f"tables/{path.name}" for path in (root / "tables").iterdir())
    assert key not in now
    flip(root / key)
    assert findings_of(run(root, quick=True)) == {key: ["is not what its catalog says"]}
    (root / key).unlink()
    assert findings_of(run(root, quick=True)) == {key: ["is missing, a catalog refers to it"]}


def test_a_repair_goes_on_from_an_earlier_catalog(root: Path) -> None:
    """Records that an adoption passed over are no damage any more."""
    key = catalogs(root)[-1]
    flip(root / key)
    assert key in findings_of(run(root, quick=True))
    assert cli.main(["repair", "--confirm", str(root)]) in (0, 13)
    assert run(root).findings == ()
    assert (root / key).exists()


def test_archive_json_of_another_archive(root: Path, made: Path, tmp_path: Path) -> None:
    other = make_archive(open_store(str(tmp_path / "other"))).info.id
    here = open_archive(open_store(str(root))).info.id
    shutil.copy(tmp_path / "other" / "archive.json", root / "archive.json")
    assert findings_of(run(root)) == {"archive.json": [f"is of archive {other}, every catalog of {here}"]}
    assert cli.main(["repair", "--confirm", str(root)]) == 0
    assert run(root).findings == ()
    assert open_archive(open_store(str(root))).info.id == here


def test_marks_of_another_archive(root: Path) -> None:
    (root / "catalog" / "latest.json").write_bytes(dump(Latest(archive_id="0" * 32, number=1)))
    (root / "derived.json").write_bytes(dump(Derived(archive_id="0" * 32, catalog=1)))
    messages = findings_of(run(root, quick=True))
    assert list(messages) == ["catalog/latest.json", "derived.json"]
    assert all(text.startswith("belongs to archive 0000") for (text,) in messages.values())


def test_segments_that_overlap_lie_outside_or_do_not_add_up(root: Path, made: Path) -> None:
    archive = open_archive(open_store(str(root)))
    again = next(s for s in archive.added(0, 1) if s.topic == "orders" and s.partition == 0)
    table_with(root, lambda table: [*table, again])
    messages = findings_of(run(root, quick=True))
    assert any("begins at offset" in text for text in messages[SEGMENT])
    assert any("its segments have" in text for text in messages[f"{point_folder(root, 2)}manifest.json"])
    shutil.rmtree(root)
    shutil.copytree(made, root)
    table_with(root, lambda table: [*table[:-1], replace(table[-1], last=99)])
    messages = findings_of(run(root))
    (key,) = [name for name in messages if name.endswith("_records")]
    assert any("outside of 0 to 40" in text for text in messages[key])
    assert any("has last 39, its restore point says 99" in text for text in messages[key])


def test_a_segment_that_is_named_elsewhere(root: Path) -> None:
    table_with(root, lambda table: [*table[:-1], replace(table[-1], key=OTHER)])
    messages = findings_of(run(root, quick=True))
    assert any("is named by the catalog where" in text for text in messages[OTHER])


def test_timestamps_and_the_largest_record(root: Path) -> None:
    table_with(root, lambda t: [*t[:-1], replace(t[-1], min_timestamp=1, max_timestamp=2, largest=3)])
    (messages,) = findings_of(run(root)).values()
    assert len(messages) == 3
    assert findings_of(run(root, quick=True)) == {}
