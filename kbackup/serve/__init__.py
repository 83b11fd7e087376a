"""Kafka's protocol, answered from an archive, read-only."""
