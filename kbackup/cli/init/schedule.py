"""What runs a backup every night: units of systemd, or values of the Helm chart."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal, get_args

from kbackup.errors import UsageError
from kbackup.util.text import printable

ScheduleKind = Literal["systemd", "kubernetes", "none"]
KINDS: tuple[ScheduleKind, ...] = get_args(ScheduleKind)

_ENVIRONMENT = "kbackup.env"
_SECRET = "kbackup-backup"  # noqa: S105 (the name of a Kubernetes secret)
_GLOB = re.compile(r"[\\*?\[]")
_LITERAL = r"\\\g<0>"
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class Schedule:
    """`at` is a time of the day, hour and minute. `image` is the repository of kbackup's image, for Kubernetes."""

    kind: ScheduleKind
    at: tuple[int, int]
    image: str = ""


def parse_at(text: str) -> tuple[int, int]:
    """Return hour and minute of "02:30". Raises `UsageError` for another text."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{text} is not a time of the day", "give a time such as 02:30")
    return int(match[1]), int(match[2])


def schedule_files(schedule: Schedule, config: Path, toml: str) -> dict[Path, str]:
    """Return the text of each file, beside the configuration file `config` with the text `toml`."""
    if schedule.kind == "systemd":
        return {
            config.with_name("kbackup.service"): service(config, _own_program(), os.environ),
            config.with_name("kbackup.timer"): timer(schedule.at),
        }
    if schedule.kind == "kubernetes":
        return {config.with_name("kbackup-values.yaml"): chart_values(schedule, toml)}
    return {}


def _own_program() -> list[str]:
    """Return the words that start kbackup as this process was installed."""
    beside = Path(sys.executable).with_name("kbackup")
    found = str(beside) if beside.is_file() else shutil.which("kbackup")
    return [found] if found else [sys.executable, "-m", "kbackup"]


def _account() -> str:
    """Return the name of this process's account, or its number where the system has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def service(config: Path, command: list[str], environ: Mapping[str, str]) -> str:
    """Return the unit that takes one backup, as the present user."""
    words = [*command[1:], "backup", "--wait", "--quiet", "--json=line", "--config", str(config)]
    user = "" if os.geteuid() == 0 else f"User={_account()}\n"
    java = environ.get("JAVA_HOME", "")
    check_path("the configuration", str(config))
    check_path("kbackup", " ".join(command))
    check_path("JAVA_HOME", java)
    # systemd takes a variable from arguments alone: neither from the program, nor from an assignment.
    arguments = [_quoted(word).replace("$", "$$") for word in words]
    start = " ".join([_quoted(command[0]), *arguments])
    environment = ""
    if java:
        assignment = _quoted(f"JAVA_HOME={java}")
        environment = f"Environment={assignment}\n"
    # systemd reads the name of this file as a pattern.
    environment_path = str(config.with_name(_ENVIRONMENT))
    environment_file = _GLOB.sub(_LITERAL, environment_path)
    # The end of the line of a folder may be no blank and no backslash.
    return f"""\
[Unit]
Description=Back up Apache Kafka
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
{user}WorkingDirectory={_escaped(str(config.parent))}/
EnvironmentFile=-{_escaped(environment_file)}
{environment}ExecStart={start}
"""


def check_path(name: str, path: str) -> None:
    """Raise `UsageError` for a path that would become lines of a unit, or steer the terminal of who copies it."""
    if not path.isprintable():
        raise UsageError(
            f"the path of {name}, {printable(path)}, can't be used", "choose a path without control characters"
        )


def timer(at: tuple[int, int]) -> str:
    """Return the unit that starts the backup every day, also one that was missed."""
    return f"""\
[Unit]
Description=Back up Apache Kafka every day

[Timer]
OnCalendar=*-*-* {at[0]:02}:{at[1]:02}:00
Persistent=true

[Install]
WantedBy=timers.target
"""


def chart_values(schedule: Schedule, toml: str) -> str:
    """Return the values of the Helm chart. Text is quoted as JSON, which is YAML."""
    hour, minute = schedule.at
    indented = []
    for line in toml.splitlines():
        indented.append(f"  {line}\n" if line else "\n")
    config = "".join(indented)
    return f"""\
image: {{repository: {json.dumps(schedule.image)}}}
config: |
{config}nightly:
  enabled: true
  schedule: "{minute} {hour} * * *"
  existingSecret: {_SECRET}
"""


def _escaped(text: str) -> str:
    """Return text without systemd's specifiers."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return one word of a command line or an assignment of a unit, apart from the variables of a command line."""
    if re.fullmatch(r"[\w@+=:,./-]+", text, re.ASCII):
        return text
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def next_steps(schedule: Schedule, config: Path, variables: Sequence[str]) -> tuple[str, ...]:
    """Return the commands to run next. The configuration file refers to `variables` of the environment."""
    named = ""
    if config != Path("kbackup.toml").absolute():
        named = f" --config {quote(str(config))}"
    commands = [f"kbackup check --spark{named}", f"kbackup backup{named}"]
    if schedule.kind == "systemd":
        if variables:
            assignments = " and ".join(f"{quote(name)}=…" for name in variables)
            file = _quoted_path(config, _ENVIRONMENT)
            commands.append(f"write {assignments} into {file}, which only you may read")
        commands.append(f"sudo systemctl link {_quoted_path(config, 'kbackup.service')}")
        commands.append(f"sudo systemctl enable --now {_quoted_path(config, 'kbackup.timer')}")
    if schedule.kind == "kubernetes":
        commands.append(f"kubectl --namespace=kbackup create secret generic {_SECRET} --from-env-file=FILE")
        # The secret comes first: the chart's pods don't start without it.
        values = _quoted_path(config, "kbackup-values.yaml")
        commands.append(f"helm upgrade --install kbackup infra/helm/kbackup --namespace=kbackup --values {values}")
    return tuple(commands)


def _quoted_path(config: Path, name: str) -> str:
    """Return the path of a file beside the configuration, quoted for a shell."""
    return quote(str(config.with_name(name)))
