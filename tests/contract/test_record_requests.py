"""Count the requests that `kbackup cat` of one record makes on a real S3 server, the first time and later."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.catalog.sweep import referred_keys
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from kbackup.store.s3.bucket import client_of
from scripts.docs.requests import ARCHIVE, run_command
from tests.conftest import Bucket
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore

PREFIX = "some/where"


@contextmanager
def requests(bucket: Bucket) -> Iterator[list[str]]:
    """Collect the requests inside the block: 'LIST prefix', 'GET key' or 'RANGE key'."""
    sent: list[str] = []

    def note(request: Any, **_: Any) -> None:
        parts = urlsplit(request.url)
        if "list-type=2" in parts.query:
            (prefix,) = re.findall(r"prefix=([^&]*)", parts.query)
            sent.append(f"LIST {unquote(prefix).removeprefix(f'{PREFIX}/')}")
            return
        name = unquote(parts.path).removeprefix(f"/{bucket.name}/{PREFIX}/")
        kind = "RANGE" if "Range" in request.headers else request.method
        sent.append(f"{kind} {name}")

    events = client_of(bucket.options).meta.events
    events.register("before-send.s3", note)
    try:
        yield sent
    finally:
        events.unregister("before-send.s3", note)


@pytest.fixture
def config(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KBACKUP_METADATA_CACHE")
    path = tmp_path / "kbackup.toml"
    path.write_text(f'archive = "{bucket.url}/{PREFIX}"\n{bucket.server.toml}')
    return path


def read_record(config: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    """Run `kbackup cat` for one record, check that it shows the record, and return its requests."""
    with requests(bucket) as sent:
        assert cli.main(["cat", *args, "--config", str(config), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert f"{shown['topic']}:{shown['partition']}:{shown['offset']}" == args[0]
    return sent


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("address", "of_the_segment"),
    [("orders:0:18", ["index", "records"]), ("clicks:0:13", ["index", "records.zst", "records.zst"])],
)
def test_one_record_costs_a_request_per_file_that_holds_it(
    address: str,
    of_the_segment: list[str],
    encrypted: bool,
    config: Path,
    bucket: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = ""
    if encrypted:
        (tmp_path / "key.secret").write_text(generate_key())
        key = f"file:{tmp_path / 'key.secret'}"
        config.write_text(f'{config.read_text()}\n[encryption]\nkey = "{key}"\n')
    archive = make_archive(
        open_store(f"{bucket.url}/{PREFIX}", {"s3": bucket.options}, key, key_class=layout.key_class)
    )
    cold = read_record(config, bucket, capsys, address)
    warm = read_record(config, bucket, capsys, address)
    metadata, of_topics = [r for r in cold if "topics/" not in r], [r for r in cold if "topics/" in r]
    listing = f"LIST {layout.CATALOG}"
    files = [request for request in metadata if request != listing]
    twice = ["GET archive.json"] if encrypted else []  # whose keys are these, before the newest catalog is compared
    assert sorted(files) == sorted([*set(files), *twice]), "each other file once"
    # of an encrypted object its size and its first bytes as well, which hold what it takes to open it
    ends = [request.rpartition("_")[2] for request in of_topics if request.startswith("RANGE ")]
    beginnings = sorted(set(of_the_segment)) if encrypted else []
    assert sorted(ends) == sorted(of_the_segment + beginnings)
    assert len(of_topics) - len(ends) == len(beginnings)
    # the cache keeps files that the listing named; other small objects are requested each time
    listed = [f"GET {key}" for key in (layout.LATEST, layout.catalog_key(archive.state.number))]
    cached = [request for request in metadata if request in listed]
    assert sorted(cached) == sorted(listed)
    folders = (layout.TABLES, layout.POINTS)
    read = [request for request in metadata if request.removeprefix("GET ").startswith(folders)]
    known = referred_keys(archive.committed)
    assert {request.removeprefix("GET ") for request in read} < known
    # one to compare it with what this machine has seen, one to open it
    assert [request for request in metadata if request.startswith("LIST ")] == [listing] * 2
    assert [request for request in warm if request not in of_topics] == [r for r in metadata if r not in cached]
    assert [request for request in warm if request in of_topics] == of_topics
    uncached = read_record(config, bucket, capsys, address, "--no-cache")
    assert sorted([listing, *twice, *uncached]) == sorted(cold), "nothing is remembered without the cache"


@pytest.mark.parametrize(
    "line", ["list", "info", "ls", "cat orders:0:18", "diff 1 latest", "groups show", "expire --keep-last 1"]
)
def test_a_store_in_memory_counts_the_requests_of_s3(line: str, config: Path, bucket: Bucket, tmp_path: Path) -> None:
    """The store in memory counts requests for the table of infra/docs/requests.md."""
    make_archive(open_store(f"{bucket.url}/{PREFIX}", {"s3": bucket.options}))
    with requests(bucket) as sent:
        assert cli.main([*line.split(), "--config", str(config), "--quiet"]) == 0
    store = MemoryStore(ARCHIVE)
    make_archive(store)
    kinds = Counter("GET" if (kind := request.split()[0]) == "RANGE" else kind for request in sent)
    assert run_command(line, {ARCHIVE: store}, str(tmp_path / "another cache")) == kinds


def test_an_expired_restore_point_stays_expired(
    config: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"{bucket.url}/{PREFIX}", {"s3": bucket.options})
    archive = make_archive(store)
    read_record(config, bucket, capsys, "orders:0:8", "--restore-point", "1")
    expirer = Author("expire", "another", "restore point 1 expired or was lost")
    commit(store, archive.committed, lambda state: expire_points(state, {1}), expirer)
    assert cli.main(["cat", "orders:0:8", "--restore-point", "1", "--config", str(config)]) == 2
    assert "restore point 1 expired or was lost" in capsys.readouterr().err
