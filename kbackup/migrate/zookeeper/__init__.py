"""The metadata that a Kafka cluster keeps in ZooKeeper: read, and never written."""
