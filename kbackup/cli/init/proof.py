"""Run `kbackup check` with the variables that the backup will have, and with no other ones of this shell."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kbackup.cli.init.environment import Environment, read_text
from kbackup.cli.init.schedule import unit_environment, unit_path, written_values
from kbackup.errors import KbackupError, UsageError
from kbackup.jobs.check import CheckStep

Show = Callable[[CheckStep], None]


def check_clean(
    program: Sequence[str], config: Path, files: Sequence[str], environment: Environment, show: Show
) -> tuple[CheckStep, ...]:
    """Check the configuration file with the variables that the scheduled backup has, and no other ones. Show the steps,
    and return them. `program` starts kbackup; `files` are those that the configuration names."""
    path = environment.path
    schedule = environment.schedule
    if path is None:
        return ()
    if environment.to_fill_in:
        lacking = _lacking_values(environment.to_fill_in, path)
        show(lacking)
        return (lacking,)
    # What is on the disk is checked, as the scheduled backup will read it.
    values = written_values(schedule, read_text(path))
    command = [*program, "check", "--config", str(config)]
    if schedule.kind == "systemd":
        environ = unit_environment() | values
        return tuple(_check_alone([*command, "--spark"], config.parent, environ, show))
    # A pod has nothing of this account, and its Spark comes with the image.
    with tempfile.TemporaryDirectory() as folder:
        environ = {"PATH": unit_path(), "HOME": folder} | values
        steps = _check_alone(command, Path(folder), environ, show)
    if files:
        unmounted = _unmounted_files(files)
        show(unmounted)
        steps.append(unmounted)
    return tuple(steps)


def _check_alone(command: Sequence[str], folder: Path, environ: Mapping[str, str], show: Show) -> list[CheckStep]:
    """Run a `check` of kbackup in `folder` with exactly the variables `environ`, show its steps and return them.

    An error before its first step is a step of its own."""
    try:
        done = subprocess.run(  # noqa: S603 (kbackup itself)
            [*command, "--json=line"],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        steps = [_failure(f"{command[0]} can't be run: {reason}", "install it where the service may read it")]
    else:
        steps = _steps_of(done.stdout, done.returncode)
    for step in steps:
        show(step)
    return steps


def _steps_of(printed: bytes, exit_code: int) -> list[CheckStep]:
    """Return the steps in the document of a `check`."""
    try:
        document = json.loads(printed)
    except ValueError:
        return [_failure(f"it ended with {exit_code} and no report", "see its messages above", exit_code)]
    if error := document.get("error"):
        return [_failure(error["message"], error["hint"], error["exit_code"])]
    return msgspec.convert(document["steps"], list[CheckStep])


def _failure(detail: str, hint: str, exit_code: int = KbackupError.exit_code) -> CheckStep:
    return CheckStep("check", "failed", detail, hint, exit_code or KbackupError.exit_code)


def _lacking_values(names: Sequence[str], file: Path) -> CheckStep:
    """Return the failed step of an environment file that lacks the values of variables."""
    return CheckStep(
        "environment file",
        "failed",
        f"{file} has no value of {', '.join(names)}",
        "write the values there: the backup can't run before",
        UsageError.exit_code,
    )


def _unmounted_files(files: Sequence[str]) -> CheckStep:
    """Return a warning of files that the configuration names and a pod lacks."""
    return CheckStep(
        "files",
        "warning",
        f"the configuration names files of this machine: {', '.join(files)}",
        "mount them there by nightly.extraVolumes and nightly.extraVolumeMounts",
    )
