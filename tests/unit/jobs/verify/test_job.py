"""Verification names each damaged file of an archive."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kbackup.store import open_store
from tests.support.archives import make_archive
from tests.support.exhaustive import sample
from tests.support.verifications import (
    ORDERS,
    OTHER,
    SEGMENT,
    cut,
    findings_of,
    flip,
    point_folder,
    run,
    swap,
)

pytestmark = pytest.mark.exhaustive(keep=2)

INDEX = f"{ORDERS}segment_partition_000_from_offset_0000000000_index"
PACKED = "topics/clicks/segment_partition_000_from_offset_0000000000_records.zst"


def test_a_whole_archive(root: Path) -> None:
    report = run(root)
    assert (report.findings, report.notes, report.restore_points) == ((), (), (1, 2))
    assert (report.read_records, report.deep) == (10 + 12 + 20 + 24, True)
    quick = run(root, quick=True)
    assert (quick.findings, quick.read_records) == ((), 0)
    assert [n.what for n in quick.notes] == ["was compared by sizes alone: the store keeps no checksums"]


def files_of(root: Path) -> list[str]:
    names = {"archive.json", "lock.json", "derived.json", "latest.json"}
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and ".tmp" not in path.parts and path.name not in names
    )


@pytest.mark.exhaustive(keep=1)
def test_every_file_when_it_is_missing_cut_or_flipped(root: Path, made: Path) -> None:
    """All files that the catalogs of the history and their restore points stand on, one after the other."""
    every = files_of(root)
    assert len(every) > 25
    for name in sample(every):
        for damage in (Path.unlink, cut, flip):
            damage(root / name)
            assert name in findings_of(run(root)), (name, damage)
            if damage is not flip:
                assert name in findings_of(run(root, quick=True)), (name, damage)
            shutil.copy(made / name, root / name)
    assert run(root).findings == ()


@pytest.mark.parametrize("name", ["archive.json", "catalog/latest.json", "derived.json"])
@pytest.mark.parametrize("damage", [cut, flip])
def test_files_that_are_checked_by_their_own_sum(
    root: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(root / name)
    assert list(findings_of(run(root, quick=True))) == [name]


def test_all_findings_are_listed(root: Path) -> None:
    flip(root / SEGMENT)
    cut(root / INDEX)
    (root / PACKED).unlink()
    groups = f"{point_folder(root, 1)}groups.json"
    flip(root / groups)
    (root / ORDERS / "index_partition_001").unlink()
    messages = findings_of(run(root))
    assert set(messages) == {SEGMENT, INDEX, PACKED, groups}, "derived files need groups.json"
    assert messages[PACKED] == ["is missing"]
    assert messages[SEGMENT] == ["is not what its manifest says (checksum)"]
    assert "bytes, not" in messages[INDEX][0]


def test_a_record_cut_short_is_named_by_its_position(root: Path) -> None:
    flip(root / SEGMENT, 30)
    (text,) = findings_of(run(root))[SEGMENT]
    assert text.startswith("at byte ")


def test_segments_swapped_between_partitions(root: Path) -> None:
    swap(root / SEGMENT, root / OTHER)
    swap(root / INDEX, root / OTHER.replace("_records", "_index"))
    messages = findings_of(run(root))
    assert {SEGMENT, OTHER} <= set(messages)


def test_a_replayed_manifest(root: Path) -> None:
    one, two = (f"{point_folder(root, number)}manifest.json" for number in (1, 2))
    shutil.copy(root / one, root / two)
    assert findings_of(run(root, quick=True)) == {two: ["is not the manifest that the catalog names"]}


def test_a_manifest_of_another_archive(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_archive(open_store(str(other)))
    key = f"{point_folder(root, 2)}manifest.json"
    shutil.copy(other / point_folder(other, 2) / "manifest.json", root / key)
    (text,) = findings_of(run(root, quick=True))[key]
    assert text.startswith("belongs to archive ")


@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_manifest(root: Path, number: int) -> None:
    key = f"{point_folder(root, number)}manifest.json"
    (root / key).unlink()
    assert findings_of(run(root, quick=True)) == {key: ["is missing"]}
