"""A random walk over real commands, held against a record of what Kafka had."""
