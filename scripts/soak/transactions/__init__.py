"""Prove on real brokers that no restore point has a transaction in part."""
