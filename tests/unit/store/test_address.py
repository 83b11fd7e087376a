"""Tell whether two addresses name one location, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.store import S3Options, Store, open_store
from kbackup.store.base import check_apart

_KEYS = {"access_key_id": "id", "secret_access_key": "hush", "region": "eu-west-1"}


@pytest.mark.parametrize(
    ("destination", "how"),
    [
        ("A", "is the archive itself"),
        ("A/", "is the archive itself"),
        ("./A", "is the archive itself"),
        ("A/../A", "is the archive itself"),
        ("file://{root}/A", "is the archive itself"),
        ("~/A", "is the archive itself"),
        ("link", "is the archive itself"),
        ("link/inside", "lies within the archive"),
        ("A/inside", "lies within the archive"),
        (".", "holds the archive"),
        ("AA", None),
        ("B/A", None),
    ],
)
def test_directories(
    destination: str, how: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "A").mkdir()
    (tmp_path / "link").symlink_to("A")
    _check(open_store(destination.format(root=tmp_path)), open_store("A"), how)


@pytest.mark.parametrize(
    ("destination", "archive", "how"),
    [
        ("s3://lake/kafka/", "s3://lake/kafka", "is the archive itself"),
        ("s3://lake", "s3://lake/kafka", "holds the archive"),
        ("s3://lake/kafka/copy", "s3://lake/kafka", "lies within the archive"),
        ("s3://lake/kafka-copy", "s3://lake/kafka", None),
        ("s3://copies/kafka", "s3://lake/kafka", None),
        ("lake/kafka", "s3://lake/kafka", None),
    ],
)
def test_prefixes(destination: str, archive: str, how: str | None) -> None:
    options = S3Options(endpoint_url="http://here:9000", **_KEYS)  # type: ignore[arg-type]
    _check(open_store(destination, options), open_store(archive, options), how)


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://here:9000", "http://here:9000/", True),
        ("http://localhost:9000", "http://127.0.0.1:9000", True),
        ("https://here", "https://here:443", True),
        ("http://here:9000", "http://there:9000", False),
        ("http://here:9000", "http://here:9001", False),
        ("", "https://s3.eu-central-1.amazonaws.com", True),
        ("", "http://here:9000", False),
    ],
)
def test_endpoints(one: str, other: str, same: bool) -> None:
    """A bucket of AWS is the same one in every region."""
    stores = [
        open_store("s3://lake/kafka", S3Options(endpoint_url=url, **_KEYS))  # type: ignore[arg-type]
        for url in (one, other)
    ]
    _check(stores[0], stores[1], "is the archive itself" if same else None)


@pytest.mark.exhaustive
def test_the_endpoint_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://here:9000")
    plain = S3Options(**_KEYS)  # type: ignore[arg-type]
    named = S3Options(endpoint_url="http://here:9000", **_KEYS)  # type: ignore[arg-type]
    _check(
        open_store("s3://lake/kafka", plain), open_store("s3://lake/kafka", named), "is the archive itself"
    )


def _check(destination: Store, archive: Store, how: str | None) -> None:
    if how is None:
        check_apart(destination, archive)
        return
    with pytest.raises(UsageError, match=how):
        check_apart(destination, archive)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    for url in ("s3://AKIAEXAMPLE:hush/secret@bucket/prefix", "s3://AKIAEXAMPLE@bucket"):
        with pytest.raises(UsageError, match="holds credentials") as caught:
            open_store(url)
        assert "AKIAEXAMPLE" not in str(caught.value)
        assert "hush" not in str(caught.value)
