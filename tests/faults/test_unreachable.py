"""Clusters and stores that are not there, stop being there, or run full."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from kbackup.util.system import attempts
from scripts.dev.kafka import Broker
from scripts.dev.process import free_ports
from tests.faults.conftest import backup_arguments, free_lease
from tests.faults.dying import Wish
from tests.faults.process import Kbackup, run
from tests.faults.shop import Shop, check_archive, open_shop, sell
from tests.support.truth import in_archive, in_cluster, without_offsets

if TYPE_CHECKING:
    from tests.conftest import Bucket


@pytest.fixture(scope="module")
def fragile() -> Iterator[Shop]:
    """A shop on a broker of its own, to be broken. Tests leave it running."""
    with Broker() as broker:
        shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
        sell(shop, 600)
        yield shop


def test_no_cluster_at_that_address(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ended = run(tmp_path, ["backup", f"--archive={tmp_path}/archive", f"--bootstrap-server=127.0.0.1:{port}"])
    assert ended.code == 14, ended.err
    assert f"source cluster at 127.0.0.1:{port} did not answer" in ended.err
    assert "hint: " in ended.err
    assert not (tmp_path / "archive").exists()


def test_no_bucket_of_that_name(bucket: Bucket, shop: Shop, tmp_path: Path) -> None:
    ended = run(tmp_path, backup_arguments(shop, f"{bucket.url}-not"), None, bucket.env)
    assert ended.code == 14, ended.err
    assert f"{bucket.name}-not" in ended.err


def test_a_cluster_that_goes_away_never_gives_a_restore_point(fragile: Shop, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    arguments = [*backup_arguments(fragile, str(archive), poll_timeout_seconds=3), "--set=spark.task_attempts=2"]
    wish = Wish("pause", "after", "write tables/*")
    with Kbackup(tmp_path / "run", arguments, wish) as process:
        process.wait_paused()
        fragile.broker.kill()
        process.signal(signal.SIGCONT)
        ended = process.wait()
    fragile.broker.start()
    assert ended.code == 14, ended.err
    assert f"source cluster at {fragile.broker.bootstrap}" in ended.err
    store = FileStore(archive)
    assert not open_archive(store).restore_points

    free_lease(store)
    again = run(tmp_path / "again", arguments)
    assert again.code == 0, again.err
    check_archive(store, fragile)


def test_a_target_that_restarts_in_the_middle_of_a_restore(fragile: Shop, tmp_path: Path) -> None:
    archive, prefix = tmp_path / "archive", f"again-{secrets.token_hex(3)}"
    assert run(tmp_path / "backup", backup_arguments(fragile, str(archive))).code == 0
    arguments = [
        "restore",
        str(archive),
        f"--bootstrap-server={fragile.broker.bootstrap}",
        f"--map-regex=^={prefix}-",
        f"--map-group={fragile.group}={prefix}-group",
        f"--restore-id={prefix}",
        "--set=restore.transaction_bytes=20000",
        "--set=spark.master=local[2]",
    ]
    with Kbackup(tmp_path / "run", arguments, Wish("pause", "after", "transaction")) as process:
        process.wait_paused()
        _wait_marked(fragile.broker, f"{prefix}-")
        fragile.broker.kill()
        fragile.broker.start()
        process.signal(signal.SIGCONT)
        ended = process.wait()
    if ended.code != 0:  # it may give up, but then it can be resumed
        assert ended.code in (1, 14), ended.err
        ended = run(tmp_path / "again", arguments)
    assert ended.code == 0, ended.err
    held = in_archive(FileStore(archive))
    found = in_cluster(fragile.broker.bootstrap, [f"{prefix}-{t}" for t in fragile.topics])
    expected = {tp._replace(topic=f"{prefix}-{tp.topic}"): rows for tp, rows in held.items()}
    assert without_offsets(found) == without_offsets(expected)


def _wait_marked(broker: Broker, prefix: str) -> None:
    """Wait for the end of the transaction in every log of these topics. A sole broker that is killed before it has
    written the markers drops them, as it takes the partitions for deleted when it comes back."""
    cluster = Cluster(broker.client(), "target")
    topics = cluster.topics([name for name in cluster.topic_names() if name.startswith(prefix)])
    places = [TopicPartition(name, p) for name, topic in topics.items() for p in topic.partitions]
    for _ in attempts(30, 0.1):
        if cluster.log_ends(places, "read_committed") == cluster.log_ends(places, "read_uncommitted"):
            return
    pytest.fail("no markers within 30 s")


def test_resumed_into_another_cluster(fragile: Shop, shop: Shop, archive: Path, tmp_path: Path) -> None:
    name = f"strayed-{secrets.token_hex(3)}"

    def arguments(broker: Broker) -> list[str]:
        server = f"--bootstrap-server={broker.bootstrap}"
        return ["restore", str(archive), server, f"--map-regex=^={name}-", "--no-groups", f"--restore-id={name}"]

    wish = Wish("kill job", "after", "write restores/*/plan.json")
    assert run(tmp_path / "dead", arguments(shop.broker), wish).code == -9
    ended = run(tmp_path / "again", arguments(fragile.broker))
    assert ended.code == 1, ended.err
    assert f"restore {name} was begun into cluster" in ended.err
    assert not [t for t in AdminClient(fragile.broker.client()).list_topics(timeout=30).topics if name in t]


ROOT = Path(__file__).parents[2]
_SCRIPT = """
set -eu
mount -t tmpfs -o size=96k tmpfs "$PLACE"
"$@" >"$OUT/full.out" 2>"$OUT/full.err" && exit 99
echo $? >"$OUT/full.code"
cp -a "$PLACE/archive" "$OUT/full"
mount -o remount,size=64m "$PLACE"
rm -f "$PLACE/archive/$LOCK"
"$@" >"$OUT/again.out" 2>"$OUT/again.err"
cp -a "$PLACE/archive" "$OUT/again"
"""


def test_a_file_system_that_runs_full(shop: Shop, tmp_path: Path) -> None:
    small_disk, out = tmp_path / "place", tmp_path / "out"
    for folder in (small_disk, out):
        folder.mkdir()
    command = [sys.executable, "-m", "kbackup", *backup_arguments(shop, str(small_disk / "archive"))]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _SCRIPT, "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PLACE": str(small_disk), "OUT": str(out), "LOCK": layout.LOCK, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    output = (out / "full.err").read_text()
    assert done.returncode == 0, done.stderr + output
    assert int((out / "full.code").read_text()) == 1
    assert "the store is full" in output
    assert "hint: " in output
    assert "Traceback" not in output
    full = FileStore(out / "full")
    assert not open_archive(full).restore_points
    check_archive(FileStore(out / "again"), shop)
