"""The conditions for building a session in a thread, and the log lines of its JVM that are passed on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kbackup.spark.jvm import pass_on, without_secrets

_SCRIPT = """
import os
from kbackup.spark.jvm import Jvm

forks = []
os.register_at_fork(before=lambda: forks.append(1))
Jvm({}).terminate()
print(forks)
"""


def test_starting_the_jvm_runs_no_hook_into_forks() -> None:
    """A hook that another thread registers between a fork's two halves releases a lock that it never took: a traceback
    of Python's on the terminal, from a command that works."""
    environment = {**os.environ, "SPARK_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def passed_on(text: str, capfd: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the words of each line that is passed on of what a JVM writes."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    pass_on(reading)
    return [line.split() for line in capfd.readouterr().err.splitlines()]


def test_messages_of_present_jars_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    dropped = """:: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml
io.delta#delta-spark_4.1_2.13 added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-7dea4e78;1.0
\tfound io.delta#delta-storage;4.3.1 in central
\t|                  |            modules            ||   artifacts   |
\t5 artifacts copied, 0 already retrieved (11936kB/44ms)
"""
    kept = """downloading https://repo.example/io/delta/delta-storage-4.3.1.jar ...
:: problems summary ::
\t\tmodule not found: io.delta#delta-storage;4.3.1
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala:1133)
"""
    assert passed_on(dropped + kept, capfd) == [line.split() for line in kept.splitlines()]


def test_a_traceback_that_ends_the_stream_is_shown_as_printable_text(capfd: pytest.CaptureFixture[str]) -> None:
    cut = 'Traceback (most recent call last):\n  File "\x1b[2J", line 1, in main\n'
    assert passed_on(cut, capfd) == [line.split() for line in cut.replace("\x1b", "\\x1b").splitlines()]


def test_tracebacks_of_cancelled_tasks_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Their worker's line to the JVM ended. Other tracebacks are passed on, and what comes between."""
    frames = 'Traceback (most recent call last):\n  File "{}", line 1, in main\n    work()\n'
    daemon, other = frames.format("/x/pyspark/daemon.py"), frames.format("/x/own.py")
    dropped = f"{daemon}EOFError\n{daemon}BrokenPipeError: [Errno 32] Broken pipe\n"
    kept = f"{daemon}ValueError: 1\n{other}EOFError\na word\n{other}"
    assert passed_on(dropped + kept, capfd) == [line.split() for line in kept.splitlines()]
    for cut in (daemon, "Traceback (most recent call last):\n"):
        assert passed_on(cut, capfd) == [], "the daemon ends its workers in the middle of what they print"


def test_the_jvms_command_line_has_no_secrets() -> None:
    """Whatever Spark hides in its logs, and what only we know to be one."""
    hidden = {
        "spark.hadoop.fs.s3a.secret.key": "hush",
        "spark.hadoop.fs.s3a.encryption.key": "hush",
        "spark.hadoop.fs.azure.account.key.mine.dfs.core.windows.net": "hush",
        "spark.hadoop.fs.azure.sas.container.mine.blob.core.windows.net": "hush",
        "spark.jars.repositories": "https://hush@repo.example.com/maven",
    }
    told = {"spark.app.name": "kbackup", "spark.hadoop.fs.s3a.endpoint": "https://s3.example.com"}
    assert without_secrets(told | hidden) == told
