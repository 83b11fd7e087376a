"""Where a cluster's migration from ZooKeeper to KRaft is: three witnesses, and what follows from them."""
