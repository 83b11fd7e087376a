"""Where an export may go."""

from __future__ import annotations

from pathlib import Path
from typing import Never

import pytest

from kbackup.config.models import Export
from kbackup.errors import UsageError
from kbackup.jobs.delta_export import export_delta
from kbackup.jobs.export_place import Place
from kbackup.jobs.listen import Silent
from kbackup.jobs.parquet_export import export_parquet
from kbackup.store import S3Options, open_store
from kbackup.store.file import FileStore
from tests.archives import make_archive


def no_spark() -> Never:
    raise AssertionError("nothing is to be exported")


@pytest.mark.parametrize("form", ["delta", "parquet"])
@pytest.mark.parametrize(
    "place", ["archive", "archive/", "archive/lake", "", "link/lake", "other", "file://"]
)
def test_never_into_or_around_an_archive(form: str, place: str, tmp_path: Path) -> None:
    job = export_delta if form == "delta" else export_parquet
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    make_archive(FileStore(tmp_path / "other"))
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    url = f"file://{tmp_path}/archive" if place == "file://" else f"{tmp_path}/{place}"
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"one folder, or one within the other|other is an archive"):
        job(Export(), url, store, S3Options(), no_spark, Silent(), 60)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "archive", "apart"),
    [
        ("s3://lake", "s3://lake/kafka", False),
        ("s3a://lake/kafka", "s3://lake/kafka/", False),
        ("s3://lake/kafka/tables", "s3://lake/kafka", False),
        ("s3://lake/kafka-tables", "s3://lake/kafka", True),
        ("s3://tables", "s3://lake", True),
    ],
)
def test_prefixes_of_buckets(place: str, archive: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Place.at(place, S3Options())
    monkeypatch.setattr(Place, "store", FileStore("/nonexistent"))
    if apart:
        beside.check_apart(open_store(archive))
        return
    with pytest.raises(UsageError, match="one folder, or one within the other"):
        beside.check_apart(open_store(archive))
