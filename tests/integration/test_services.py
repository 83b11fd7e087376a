"""The servers the other tests stand on: they come back as they were, and die with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient

from scripts.dev.kafka import Broker, write_classes


def test_cluster_serves_again_after_a_killed_node_came_back(topic_name: str) -> None:
    with Broker(nodes=3) as cluster:
        cluster.create_topic(topic_name, partitions=3, replication=3)
        cluster.kill(1)
        cluster.start(1)
        described = AdminClient(cluster.client(log_level=0)).list_topics(timeout=30)
        assert len(described.brokers) == 3
        assert len(described.topics[topic_name].partitions) == 3


def test_a_broker_maps_the_archive_of_classes_that_was_written_for_it() -> None:
    """A JVM passes an archive over in silence if it does not fit: then each start takes twice as long."""
    archive = write_classes()
    with Broker() as started_after_it:
        maps = Path(f"/proc/{started_after_it.pid()}/maps").read_text()
    assert str(archive) in maps


def test_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = "from scripts.dev.s3 import MotoServer as M\nwith M() as s:\n  print(s.pid(), flush=True)\n  input()"
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody is left to remove its folder
    argv, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)  # it is there
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has reaped yet (an orphan in a container without an init) is dead too.
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True).stdout[:1] not in (b"", b"Z")
