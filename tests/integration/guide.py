"""Run `kbackup restore --guide` with a file of answers, as a runbook does: without a terminal, as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Guided(NamedTuple):
    """The end of a guide: exit code, stdout and stderr, with those of its commands."""

    code: int
    out: str
    err: str


def run_guide(config: Path, archive: str, folder: Path, answers: str, *options: str) -> Guided:
    """Run the guide on an archive; `folder` gets the file of `answers`, which are lines of TOML."""
    file = folder / "answers.toml"
    file.write_text(answers)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kbackup", "restore", "--guide", "--answers", str(file)),
            *("--archive", archive, "--config", str(config), *options),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Guided(done.returncode, done.stdout, done.stderr)
