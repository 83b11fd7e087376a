"""The demo as a user runs it: what it prints, how it ends, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def demo(scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """A running demo whose temporary files, and those of its JVMs, go below `scratch`."""
    env = {
        **os.environ,
        "TMPDIR": str(scratch),
        "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
        "PYTHONUNBUFFERED": "1",
    }
    argv = [sys.executable, "-m", "scripts.demo"]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            yield run
        finally:
            if run.poll() is None:
                run.terminate()


def test_the_demo_restores_what_it_backed_up(tmp_path: Path) -> None:
    with demo(tmp_path) as run:
        output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    assert "The same: 31,200 records in 11 partitions, 11 positions of 4 groups." in output
    assert output.count("$ kbackup backup") == 2
    assert output.count("$ kbackup restore") == 1
    assert "DIFFERENT" not in output
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole foreground group, in the middle of a backup."""
    with demo(tmp_path) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("$ kbackup backup"):
                os.killpg(run.pid, signal.SIGINT)
                break
        run.communicate(timeout=120)
    assert run.returncode == 130
    assert not list(tmp_path.iterdir())
