"""Spark's JVM is killed under a backup, and under a follower, which goes on with another one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kbackup.store.file import FileStore
from scripts.dev.process import free_ports
from tests.faults.conftest import backup_arguments
from tests.faults.dying import Wish
from tests.faults.process import Kbackup, run
from tests.faults.shop import Shop, sell
from tests.faults.test_follow import eventually, follow_arguments, points
from tests.support.truth import in_archive, in_cluster


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
        for kills in (1, 2):
            kill_jvm(process)
            before = points(store)
            sell(shop, 50)
            eventually(lambda before=before: points(store) > before, process)  # type: ignore[misc]
            assert process.err.count("Spark's JVM has ended: another session starts") == kills, process.err
        eventually(
            lambda: in_archive(store) == in_cluster(shop.broker.bootstrap, shop.topics), process
        )  # the records of a sale may come in two rounds
        kill_jvm(process)
        sell(shop, 50)
        ended = process.wait()
    assert ended.code == 1, ended.err
    assert "kbackup: Spark's JVM has ended 3 times within an hour" in ended.err
    assert "Traceback" not in ended.err
