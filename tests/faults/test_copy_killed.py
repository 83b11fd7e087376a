"""Kill copies between directories and a real S3 server, and repeat them: the copy equals its source in the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store import Store, open_store
from scripts.dev.s3 import Minio
from tests.conftest import options_of
from tests.faults.dying import Wish
from tests.faults.process import Ended, run
from tests.support.archives import make_archive
from tests.support.copies import contents


class Location(NamedTuple):
    url: str
    store: Store


class Copies(NamedTuple):
    """The source's S3 server is named in the configuration, DEST's by flags alone, with a profile of AWS's files."""

    folder: Path
    server: Minio

    def new_location(self, kind: str) -> Location:
        if kind == "directory":
            url = str(self.folder / secrets.token_hex(4))
            return Location(url, open_store(url))
        bucket = f"copies-{secrets.token_hex(6)}"
        self.server.create_bucket(bucket)
        return Location(f"s3://{bucket}/at", open_store(f"s3://{bucket}/at", {"s3": options_of(self.server)}))

    def copy(self, source: Location, target: Location, wish: Wish | None = None) -> Ended:
        server = self.server
        s3 = server.toml if source.url.startswith("s3:") else ""
        (self.folder / "kbackup.toml").write_text(f'archive = "{source.url}"\n{s3}')
        (self.folder / "aws.secret").write_text(
            f"[vault]\naws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
        )
        to = ["--to-s3-endpoint-url", server.endpoint_url, "--to-s3-region", server.region]
        flags = [*to, "--to-s3-profile", "vault"] if target.url.startswith("s3:") else []
        arguments = ["copy", target.url, *flags, "--config", str(self.folder / "kbackup.toml"), "--json"]
        env = {"AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "aws.secret")}
        return run(self.folder / secrets.token_hex(4), arguments, wish, env)


@pytest.fixture
def copies(minio_server: Minio, tmp_path: Path) -> Copies:
    return Copies(tmp_path, minio_server)


def check_whole(store: Store) -> None:
    """Verify the archive deeply: an unfinished copy has no findings either."""
    spark: Callable[[], None] = lambda: None  # noqa: E731
    report = verify(store, "all", True, spark, Silent())  # type: ignore[arg-type]
    assert report.findings == ()


@pytest.mark.parametrize(
    ("kind", "to", "wish"),
    [
        ("directory", "bucket", Wish("kill job", "after", "write topics/*_records*", 4)),
        ("bucket", "bucket", Wish("kill job", "before", "write points/*2-*/manifest.json")),
        ("bucket", "directory", Wish("kill job", "after", "write points/*1-*/manifest.json")),
    ],
)
def test_killed_and_run_again(kind: str, to: str, wish: Wish, copies: Copies) -> None:
    source, target = copies.new_location(kind), copies.new_location(to)
    make_archive(source.store)
    dead = copies.copy(source, target, wish)
    assert dead.code == -9, dead.err
    reached = [p.number for p in open_archive(target.store).restore_points]
    assert reached == []  # one commit takes over all of them
    check_whole(target.store)
    target.store.delete([layout.LOCK])  # its holder is dead; nobody waits here until it runs out
    ended = copies.copy(source, target)
    assert ended.code == 0, ended.err
    assert (ended.document["newest"], ended.document["found"] > 0) == (2, True)
    assert contents(target.store) == contents(source.store)
    check_whole(target.store)


def test_a_damaged_source_is_refused(copies: Copies) -> None:
    """Before its damage reaches the copy; what came before it stays as it was."""
    source, target = copies.new_location("bucket"), copies.new_location("bucket")
    make_archive(source.store)
    key = "topics/orders/segment_partition_000_from_offset_0000000015_records"
    data = source.store.get(key)
    source.store.put(key, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    ended = copies.copy(source, target)
    assert ended.code == 13, ended.err
    assert key in ended.err
    assert key not in {entry.key for entry in target.store.list()}
    assert open_archive(target.store).restore_points == ()
    source.store.put(key, data)
    ended = copies.copy(source, target)
    assert ended.code == 0, ended.err
    assert contents(target.store) == contents(source.store)
