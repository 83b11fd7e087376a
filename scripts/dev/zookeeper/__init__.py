"""ZooKeeper, the Kafka clusters that keep their metadata in it, and their migration to KRaft, for tests."""
