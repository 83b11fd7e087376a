"""Documents of a migration and the address of its ZooKeeper, for the commands of `migrate`."""

from __future__ import annotations

OF_KRAFT = {"version": 2, "brokerid": 3000, "timestamp": "1", "kraftControllerEpoch": 5}
COPIED = {"version": 0, "kraft_metadata_offset": 99, "kraft_controller_id": 3000}
ZOOKEEPER = ("--set", "source.zookeeper.connect=zk:2181/kafka")
