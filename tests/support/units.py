"""Run the command of a systemd unit with the environment that the unit gives it, and with nothing else."""

from __future__ import annotations

import pwd
import re
import shlex
import subprocess
from pathlib import Path

from tests.support.secrets import watch

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of systemd's services, in its longest form."""
_WITH_FILE = 'set -a; . "$0"; exec "$@"'
"""Gives a program the variables of a file. A shell reads them, and none of kbackup's own code."""


def unit_values(unit: Path) -> dict[str, str]:
    """Return the settings of a unit; each stands there once."""
    values: dict[str, str] = {}
    for line in unit.read_text().splitlines():
        name, sign, value = line.partition("=")
        if sign:
            assert name not in values, f"{name} stands there twice"
            values[name] = value.replace("%%", "%")
    return values


def run_unit(unit: Path) -> subprocess.CompletedProcess[str]:
    """Run ExecStart of a unit under `env -i`, with its EnvironmentFile, its user's home and its folder."""
    values = unit_values(unit)
    command = [word.replace("$$", "$") for word in shlex.split(values["ExecStart"])]
    # The dash allows that the file is missing. systemd reads its name as a pattern.
    file = re.sub(r"\\(.)", r"\1", values["EnvironmentFile"].removeprefix("-"))
    account = pwd.getpwnam(values["User"])
    base = [f"PATH={_PATH}", f"HOME={account.pw_dir}", f"USER={account.pw_name}", f"LOGNAME={account.pw_name}"]
    done = subprocess.run(
        ["env", "-i", *base, "/bin/sh", "-c", _WITH_FILE, file, *command],
        cwd=values["WorkingDirectory"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    watch.look_at(f"the command of {unit.name}", done.stdout + done.stderr)
    return done
