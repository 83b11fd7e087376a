"""Check whether a cluster is ready for its migration from ZooKeeper to KRaft."""
