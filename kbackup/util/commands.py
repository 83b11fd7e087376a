"""Commands as text, to be copied from a message into a shell."""

from __future__ import annotations

import shlex


def kbackup_command(*words: str) -> str:
    return shlex.join(["kbackup", *words])


def kafka_command(tool: str, servers: str, *words: str) -> str:
    """Return a call of one of Kafka's own tools, such as `kafka-topics`. A secured cluster also needs
    `--command-config FILE`."""
    return shlex.join([f"{tool}.sh", "--bootstrap-server", servers, *words])
