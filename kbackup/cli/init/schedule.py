"""Write what runs a backup every night: units of systemd, or values of the Helm chart."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from kbackup.errors import UsageError
from kbackup.util.text import printable

Kind = Literal["systemd", "kubernetes", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENVIRONMENT = "kbackup.env"
SECRET = "kbackup-backup"  # noqa: S105 (the name of a Kubernetes secret)
_GLOB, _LITERAL = re.compile(r"[\\*?\[]"), r"\\\g<0>"
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class Schedule:
    """`at` is a time of the day, hour and minute. `image` is the repository of kbackup's image, for Kubernetes."""

    kind: Kind
    at: tuple[int, int]
    image: str = ""


def parse_at(text: str) -> tuple[int, int]:
    """Return hour and minute of "02:30". Raises `UsageError` for another text."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{text} is not a time of the day", "give a time such as 02:30")
    return int(match[1]), int(match[2])


def default_kind() -> Kind:
    """Return systemd where it runs, else none."""
    return "systemd" if Path("/run/systemd/system").is_dir() else "none"


def schedule_files(schedule: Schedule, config: Path, toml: str) -> dict[Path, str]:
    """Return the text of each file, beside the configuration file `config` with the text `toml`."""
    if schedule.kind == "systemd":
        return {
            config.with_name("kbackup.service"): service(config, kbackup_command(), os.environ),
            config.with_name("kbackup.timer"): timer(schedule.at),
        }
    if schedule.kind == "kubernetes":
        return {config.with_name("kbackup-values.yaml"): chart_values(schedule, toml)}
    return {}


def kbackup_command() -> list[str]:
    """Return the command line that starts this installation of kbackup."""
    beside = Path(sys.executable).with_name("kbackup")
    found = str(beside) if beside.is_file() else shutil.which("kbackup")
    return [found] if found else [sys.executable, "-m", "kbackup"]


def service(config: Path, command: list[str], environ: Mapping[str, str]) -> str:
    """Return the unit that takes one backup, as the present user."""
    words = [*command[1:], "backup", "--wait", "--quiet", "--json=line", "--config", str(config)]
    user = "" if os.geteuid() == 0 else f"User={pwd.getpwuid(os.geteuid()).pw_name}\n"
    java = environ.get("JAVA_HOME", "")
    for name, path in (("the configuration", str(config)), ("kbackup", " ".join(command)), ("JAVA_HOME", java)):
        check_path(name, path)
    # systemd takes a variable from arguments alone: neither from the program, nor from an assignment
    start = " ".join([_quoted(command[0]), *(_quoted(word).replace("$", "$$") for word in words)])
    return (
        "[Unit]\n"
        "Description=Back up Apache Kafka\n"
        "Wants=network-online.target\n"
        "After=network-online.target\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"{user}"
        f"WorkingDirectory={_escaped(str(config.parent))}/\n"  # the end of a line may be no blank and no backslash
        f"EnvironmentFile=-{_escaped(_GLOB.sub(_LITERAL, str(config.with_name(ENVIRONMENT))))}\n"
        + (f"Environment={_quoted(f'JAVA_HOME={java}')}\n" if java else "")
        + f"ExecStart={start}\n"
    )


def check_path(name: str, path: str) -> None:
    """Raise `UsageError` for a path that would become lines of a unit, or steer the terminal of who copies it."""
    if not path.isprintable():
        raise UsageError(
            f"the path of {name}, {printable(path)}, can't be used", "choose a path without control characters"
        )


def timer(at: tuple[int, int]) -> str:
    """Return the unit that starts the backup every day, also one that was missed."""
    return (
        "[Unit]\n"
        "Description=Back up Apache Kafka every day\n"
        "\n"
        "[Timer]\n"
        f"OnCalendar=*-*-* {at[0]:02}:{at[1]:02}:00\n"
        "Persistent=true\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )


def chart_values(schedule: Schedule, toml: str) -> str:
    """Return the values of the Helm chart. Text is quoted as JSON, which is YAML."""
    hour, minute = schedule.at
    config = "".join(f"  {line}\n" if line else "\n" for line in toml.splitlines())
    return (
        f"image: {{repository: {json.dumps(schedule.image)}}}\n"
        f"config: |\n{config}"
        "nightly:\n"
        "  enabled: true\n"
        f'  schedule: "{minute} {hour} * * *"\n'
        f"  existingSecret: {SECRET}\n"
    )


def _escaped(text: str) -> str:
    """Return text without systemd's specifiers."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return one word of a command line or an assignment of a unit, apart from the variables of a command line."""
    if re.fullmatch(r"[\w@+=:,./-]+", text, re.ASCII):
        return text
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
