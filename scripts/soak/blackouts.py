"""python -m scripts.soak.blackouts [MINUTES]: memory and lag of a follower whose cluster and store go away twice."""

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import linear_regression

from confluent_kafka import Producer

from kbackup.archive.reader import open_archive
from kbackup.store import S3Options, open_store
from scripts.dev.kafka import Broker
from scripts.dev.link import Link
from scripts.dev.s3 import Minio
from tests.faults.conftest import backup_arguments
from tests.faults.process import Kbackup, run
from tests.faults.shop import open_shop, sell
from tests.support.truth import in_archive, in_cluster

_RATE, _BURST, _AWAY = 200, 6000, 180  # records a second, and once a minute, for Spark; s of a blackout


def main(minutes: int = 80) -> None:
    folder, sizes = Path(tempfile.mkdtemp(prefix="kbackup-soak-")), []
    with Link() as link, Broker(via=link.open) as broker, Minio() as minio, ExitStack() as dark:
        minio.create_bucket("soak")
        shop, store = open_shop(broker, "soak"), open_store("s3://soak/archive", {"s3": S3Options(**minio.options)})
        sell(shop, made := _BURST)
        command = backup_arguments(shop, store.url, segment_bytes=4 << 20, split_records=5000, pack_records=5000)
        env = {**minio.env, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{link.open(int(minio.endpoint_url[17:]))}"}
        producer = Producer({"bootstrap.servers": broker.bootstrap_of("INTERNAL"), "linger.ms": 100})
        far = f"--bootstrap-server=127.0.0.1:{link.open(int(broker.bootstrap[10:]))}"
        with Kbackup(folder, [*command, far, "--follow", "--interval=5s", "--quiet"], env=env) as process:
            began, memory = time.monotonic(), ["ps", "-o", "rss=", "--sid", str(process.pid)]
            for second in range(minutes * 60):
                time.sleep(max(0.0, began + second - time.monotonic()))
                since = min((s for s in (second - minutes * 15, second - minutes * 75 // 2) if s >= 0), default=9999)
                if since == 0:
                    dark.enter_context(link.blackout())
                elif since == _AWAY:
                    dark.close()
                for number in range(made, made := made + (_BURST if second % 60 == 30 else _RATE)):
                    producer.produce(shop.orders, f"order {number} ".encode() * 8, None, number % 3)
                producer.poll(0)
                if second % 60 == 59 or _AWAY <= since < _AWAY + 60:
                    head, lines = open_archive(store).head, process.err.count("\n")
                    done = sum(p.end for t in head.topics if t.name == shop.orders for p in t.partitions) if head else 0
                    sizes.append((second / 3600, sum(map(int, subprocess.check_output(memory).split())) / 1000))
                    print(f"{second} s: {sizes[-1][1]:.0f} MB, lag {made - done}, {lines} log lines", flush=True)
            producer.flush(60)
            process.signal(signal.SIGTERM)
            growth = linear_regression(*zip(*sizes[len(sizes) // 5 :], strict=True)).slope
            print(f"exit code {process.wait().code}, {growth:.1f} MB more an hour")
        print("verify:", run(folder / "verify", ["verify", store.url, "--set=spark.master=local[2]"], env=minio.env))
        assert in_archive(store) == in_cluster(broker.bootstrap_of("INTERNAL"), shop.topics)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
