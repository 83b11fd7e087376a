"""Jobs of `kbackup migrate`: around a cluster's migration from ZooKeeper to KRaft (KIP-866)."""
