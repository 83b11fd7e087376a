"""Destinations that an export accepts and refuses."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Never

import pytest

from kbackup.archive.reader import open_archive
from kbackup.config.models import Export
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.export.destination import Destination
from kbackup.jobs.export.run import ExportJob
from kbackup.jobs.export.tables import export_delta, export_parquet
from kbackup.metrics.registry import Silent
from kbackup.store import S3Options
from kbackup.store.file import FileStore
from tests.support.archives import make_archive
from tests.support.growing_archive import grow


def no_spark() -> Never:
    raise AssertionError("nothing is to be exported")


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("form", ["delta", "parquet"])
@pytest.mark.parametrize(
    "destination", ["archive", "archive/", "archive/lake", "", "link/lake", "other", "file://"]
)
def test_never_into_or_around_an_archive(form: str, destination: str, tmp_path: Path) -> None:
    job = export_delta if form == "delta" else export_parquet
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    make_archive(FileStore(tmp_path / "other"))
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    url = f"file://{tmp_path}/archive" if destination == "file://" else f"{tmp_path}/{destination}"
    before = set(tmp_path.rglob("*"))
    with pytest.raises(
        UsageError, match=r"is the archive itself|(lies within|holds) the archive|other is an archive"
    ):
        job(ExportJob(Export(), url, store, S3Options(), no_spark, Silent(), 60))
    assert set(tmp_path.rglob("*")) == before


def test_a_bucket_as_spark_writes_it_and_a_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Destination.at("s3a://lake/kafka/", S3Options()).url == "s3://lake/kafka"
    assert Destination.at("~/lake", S3Options()).url == f"{tmp_path}/lake"


def test_only_an_archive_that_goes_on_from_where_it_was(tmp_path: Path) -> None:
    destination = Destination.at(f"{tmp_path}/lake", S3Options())
    store, lags, diverged = (FileStore(tmp_path / name) for name in ("archive", "lags", "diverged"))
    make_archive(store)
    copytree(tmp_path / "archive", tmp_path / "lags")
    copytree(tmp_path / "archive", tmp_path / "diverged")
    grow(store, 3, 50, 60)
    destination.check_same_lineage(open_archive(store))
    with pytest.raises(RefusedError, match=r"brought up to restore point 3, the newest of .*lags is 2"):
        destination.check_same_lineage(open_archive(lags))
    for seq in (3, 4):
        grow(diverged, seq, seq * 17, seq * 17 + 10)
    with pytest.raises(
        RefusedError, match=r"lake has diverged from .*diverged: restore point 3 is of another"
    ):
        destination.check_same_lineage(open_archive(diverged))
    copytree(tmp_path / "archive", tmp_path / "lags", dirs_exist_ok=True)
    grow(lags, 4, 60, 70)
    destination.check_same_lineage(open_archive(lags))
    with pytest.raises(RefusedError, match=r"brought up to restore point 4, the newest of .*archive is 3"):
        destination.check_same_lineage(open_archive(store))


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_an_archive_that_is_behind_gets_nothing_exported(form: str, tmp_path: Path) -> None:
    job = export_delta if form == "delta" else export_parquet
    store, ahead = FileStore(tmp_path / "archive"), FileStore(tmp_path / "ahead")
    make_archive(store)
    copytree(tmp_path / "archive", tmp_path / "ahead")
    grow(ahead, 3, 50, 60)
    Destination.at(f"{tmp_path}/lake", S3Options()).check_same_lineage(open_archive(ahead))
    with pytest.raises(RefusedError, match="brought up to restore point 3"):
        job(ExportJob(Export(), f"{tmp_path}/lake", store, S3Options(), no_spark, Silent(), 60))
