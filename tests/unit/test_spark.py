"""What must be so before a session is built in a thread."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os

late = []
register = os.register_at_fork

def registering(**hooks):
    late.append(hooks)
    register(**hooks)

import kbackup.spark
os.register_at_fork = registering
import boto3, botocore.httpsession, confluent_kafka.admin, pandas, pyarrow.parquet
import kbackup.cli.backup, kbackup.cli.drill, kbackup.cli.restore, kbackup.jobs.backup, kbackup.jobs.restore
import kbackup.kafka.native.fill, kbackup.store.s3
print([hooks for hooks in late if set(hooks) - {"after_in_child"}])
"""


def test_no_hook_into_forks_comes_while_the_jvm_is_forked() -> None:
    """One that is registered between a fork's two halves releases a lock that it never took: a traceback of Python's
    on the terminal, from a command that works."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
