"""Find the state of a cluster's migration from ZooKeeper to KRaft, from three witnesses."""
