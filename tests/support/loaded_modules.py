"""The modules that a command imports, as its own process tells them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PREFIX = "import time:"


def loaded_modules(*arguments: str, cwd: Path = _ROOT, env: Mapping[str, str] | None = None) -> set[str]:
    """Run `kbackup` with these arguments, as a user does, and return the names of all modules it imported.

    `env` replaces the environment. `AssertionError` with the command's output when it fails.
    """
    environ = dict(os.environ if env is None else env) | {"PYTHONPATH": str(_ROOT)}
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kbackup", *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = run.stderr.splitlines()
    other = [line for line in lines if not line.startswith(_PREFIX)]
    assert run.returncode == 0, (run.returncode, run.stdout, other)
    names = {line.rsplit("|", 1)[1].strip() for line in lines if line.startswith(_PREFIX)}
    assert "kbackup.cli" in names
    return names
