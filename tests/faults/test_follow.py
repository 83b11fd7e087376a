"""A follower that is stopped, killed, or loses its store, its cluster or its JVM."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from kbackup.archive import layout
from kbackup.archive.models import Lease, dump
from kbackup.archive.reader import open_archive
from kbackup.config.models import Follow
from kbackup.errors import LeaseLostError, UnreachableError
from kbackup.store import S3Options, Store, open_store
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from scripts.dev.process import HANG, free_ports
from scripts.dev.s3 import Minio
from tests.faults.conftest import SHORT_LEASE, BackUp, backup_arguments, options
from tests.faults.dying import Wish
from tests.faults.process import Kbackup, run
from tests.faults.shop import Shop, check_archive, open_shop, sell
from tests.support.following import Following
from tests.support.truth import in_archive, in_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK = Follow(interval_seconds=0.3, stale_after_seconds=1, lease_seconds=SHORT_LEASE)


def eventually(true: Callable[[], bool], process: Kbackup) -> None:
    end = time.monotonic() + HANG
    while not true():
        assert time.monotonic() < end, process.err
        time.sleep(0.1)


def test_a_broker_and_a_store_that_go_away_and_come_back(spark: SparkSession) -> None:
    with Broker() as broker, Minio() as minio:
        minio.create_bucket("followed")
        shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
        sell(shop, 300)
        store = open_store(
            "s3://followed/archive", {"s3": S3Options(**minio.options, max_attempts=2)}, key_class=layout.key_class
        )
        with Following(options(shop), QUICK, broker, store, spark) as following:
            following.until(lambda: len(following.commits) == 1)

            broker.kill()
            following.until(lambda: any(isinstance(error, UnreachableError) for error in following.errors))
            following.until(lambda: following.health.answer()[0] == 503)
            broker.start()
            sell(shop, 200)
            following.pass_time(10)  # the first round may have captured the groups before they moved
            following.another_round()
            # a round may take longer than the second after which one without news is stale: then the next one is asked
            following.until(lambda: following.health.answer()[0] == 200)
            check_archive(store, shop)

            failures = len(following.errors)
            minio.kill()
            sell(shop, 100)
            following.until(lambda: any("ran out" in e.message for e in following.errors[failures:]))
            minio.start()
            following.pass_time(10)
            following.another_round()
            check_archive(store, shop)
            sell(shop, 100)
        assert following.report is not None
        assert following.report.retries == len(following.errors)
        check_archive(store, shop)


def test_a_lease_that_was_taken_over_ends_it(archive: Path, shop: Shop, spark: SparkSession) -> None:
    store = FileStore(archive)
    with Following(options(shop), QUICK, shop.broker, store, spark) as following:
        following.until(lambda: bool(following.commits))
        before = [m.number for m in open_archive(store).restore_points]
        other_lease = Lease(
            owner="somebody",
            host="elsewhere",
            pid=7,
            command="kbackup backup",
            acquired_at="2020-01-01T00:00:00.000Z",
            expires_at="2999-01-01T00:00:00.000Z",
        )
        store.put(layout.LOCK, dump(other_lease))
        error = following.ended_by()
    assert isinstance(error, LeaseLostError)
    assert "taken over by another writer" in error.message
    assert [m.number for m in open_archive(store).restore_points] == before
    assert not following.errors, "that is nothing to try again"


def follow_arguments(shop: Shop, archive: Path, port: int) -> list[str]:
    return [
        *backup_arguments(shop, str(archive)),
        "--follow",
        "--interval=500ms",
        "--set=follow.lease_seconds=120",
        f"--listen=127.0.0.1:{port}",
        "--stale-after=1h",
    ]


def scrape(port: int) -> dict[str, float]:
    """Series without labels of their own."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {s.name: s.value for f in families for s in f.samples if set(s.labels) == {"command", "archive"}}


def points(store: Store) -> int:
    return len(open_archive(store).restore_points)


def test_sigterm_ends_the_command_after_a_last_commit(archive: Path, tmp_path: Path, shop: Shop) -> None:
    """To each of its processes, as systemd sends it."""
    store, (port,) = FileStore(archive), free_ports(1)
    file = tmp_path / "follow.prom"
    arguments = [*follow_arguments(shop, archive, port), f"--metrics-file={file}"]
    with Kbackup(tmp_path / "run", arguments) as process:
        eventually(lambda: points(store) == 2, process)
        sell(shop, 150)
        eventually(lambda: points(store) >= 3, process)
        eventually(lambda: scrape(port)["kbackup_restore_point"] >= 3, process)
        eventually(lambda: scrape(port)["kbackup_lag_offsets"] == 0, process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            assert answer.status == 200
        assert scrape(port)["kbackup_records_total"] > 0
        sell(shop, 150)
        process.signal(signal.SIGTERM)
        ended = process.wait()
    assert ended.code == 0, ended.err
    held = check_archive(store, shop)
    report = ended.document
    assert report["restore_point"] == held.restore_points[-1].number
    assert report["restore_points"] == len(held.restore_points) - 1
    assert json.loads(store.get(layout.LOCK))["released"]
    families = text_string_to_metric_families(file.read_text())
    written = {s.name: s.value for f in families for s in f.samples}
    assert written["kbackup_success"] == 1
    assert written["kbackup_restore_points_total"] == report["restore_points"]
    assert written["kbackup_restore_point"] == report["restore_point"]


def test_a_second_signal_ends_it_at_once(archive: Path, tmp_path: Path, shop: Shop, back_up: BackUp) -> None:
    store, (port,) = FileStore(archive), free_ports(1)
    before = points(store)
    asleep = Wish("pause", "before", "write points/*/manifest.json")
    with Kbackup(tmp_path / "run", follow_arguments(shop, archive, port), asleep) as process:
        process.wait_paused()
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGINT)
        process.signal(signal.SIGCONT)
        ended = process.wait()
    assert ended.code == 130, ended.err
    assert points(store) == before
    back_up(store)  # it takes over the lease of the dead process
    check_archive(store, shop)


def kill_jvm(process: Kbackup) -> None:
    """Kill the JVM that a command started."""
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    pids = [pid for file in children for pid in file.read_text().split()]
    (jvm,) = [int(pid) for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    os.kill(jvm, signal.SIGKILL)


def test_a_backup_whose_jvm_is_killed_names_that(shop: Shop, archive: Path, tmp_path: Path) -> None:
    wish = Wish("kill executor", "before", "write topics/*_records*", 2)
    ended = run(tmp_path / "run", backup_arguments(shop, str(archive)), wish)
    assert ended.code == 1, ended.err
    assert "kbackup: Spark's JVM has ended in the middle of the work" in ended.err
    assert "Traceback" not in ended.err
    assert points(FileStore(archive)) == 1, "nothing was committed"


def test_a_follower_whose_jvm_is_killed_goes_on_until_the_third_time(archive: Path, tmp_path: Path, shop: Shop) -> None:
    store, (port,) = FileStore(archive), free_ports(1)
    with Kbackup(tmp_path / "run", follow_arguments(shop, archive, port)) as process:
        eventually(lambda: points(store) == 2, process)

        def sessions() -> int:
            """Sell, and return how many sessions have started anew by the time that the archive has it all."""
            sell(shop, 300)  # more than the process archives without Spark, if one round has all of it
            eventually(lambda: in_archive(store) == in_cluster(shop.broker.bootstrap, shop.topics), process)
            return process.err.count("Spark's JVM has ended: another session starts")

        for kills in (1, 2):
            kill_jvm(process)
            eventually(lambda kills=kills: sessions() == kills, process)  # type: ignore[misc]
        kill_jvm(process)

        def sell_and_see() -> bool:
            sell(shop, 300)
            return not process.alive

        eventually(sell_and_see, process)
        ended = process.wait()
    assert ended.code == 1, ended.err
    assert "kbackup: Spark's JVM has ended 3 times within an hour" in ended.err
    assert "Traceback" not in ended.err
