"""Backup and restore measured beside bare confluent-kafka loops on the same machine, in the same run (README.md)."""
