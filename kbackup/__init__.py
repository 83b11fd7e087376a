"""kbackup: backups of Apache Kafka in object storage, and the way back."""

__version__ = "0.1.0"
