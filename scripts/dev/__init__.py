"""Servers for tests, the demo and developers: a Kafka broker, MinIO and moto, on loopback and random ports.

They come from locked sources into a cache folder outside the tree (`cache`), belong to the process that
started them (`process`), and are gone when it is, however it ended.
"""
