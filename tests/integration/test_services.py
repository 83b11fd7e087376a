"""The servers the other tests stand on: they keep data over a restart and die with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient

from scripts.dev.kafka import Broker
from scripts.dev.s3 import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Bucket


def test_broker_keeps_topics_over_a_restart(topic_name: str) -> None:
    with Broker() as running:
        running.create_topic(topic_name)
        running.restart()
        assert topic_name in AdminClient(running.client(log_level=0)).list_topics(timeout=30).topics


def test_cluster_serves_again_after_a_killed_node_came_back(topic_name: str) -> None:
    with Broker(nodes=3) as cluster:
        cluster.create_topic(topic_name, partitions=3, replication=3)
        cluster.kill(1)
        cluster.start(1)
        described = AdminClient(cluster.client(log_level=0)).list_topics(timeout=30)
        assert len(described.brokers) == 3
        assert len(described.topics[topic_name].partitions) == 3


@pytest.mark.parametrize("fixture", ["minio_server", "moto_server"])
def test_s3_server_refuses_a_second_creation(fixture: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(fixture)
    client = server.client()
    bucket = f"test-{fixture.replace('_', '-')}"
    server.create_bucket(bucket)
    client.put_object(Bucket=bucket, Key="a", Body=b"1", IfNoneMatch="*")
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="a", Body=b"2", IfNoneMatch="*")
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"


def test_bucket_is_fresh(bucket: Bucket) -> None:
    assert bucket.client().list_objects_v2(Bucket=bucket.name)["KeyCount"] == 0


def test_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = "from scripts.dev.s3 import MotoServer as M\nwith M() as s:\n  print(s.pid, flush=True)\n  input()"
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody is left to remove its folder
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
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


def test_spark_runs_arrow_tasks(spark: SparkSession) -> None:
    def double(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"doubled": pc.multiply(batch["id"], 2)})

    rows = spark.range(4, numPartitions=4).mapInArrow(double, "doubled long").collect()
    assert sorted(row["doubled"] for row in rows) == [0, 2, 4, 6]
