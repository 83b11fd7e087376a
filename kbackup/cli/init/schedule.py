"""What runs a backup every night: units of systemd, or values of the Helm chart."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal, get_args

from kbackup.cli.init.environment_file import completed, values_of
from kbackup.errors import UsageError
from kbackup.util.text import printable

ScheduleKind = Literal["systemd", "kubernetes", "none"]
KINDS: tuple[ScheduleKind, ...] = get_args(ScheduleKind)

_ENVIRONMENT = "kbackup.env"
_SECRET_FILE = "kbackup-secret.env"  # noqa: S105 (the name of a file)
_SERVICE = "kbackup.service"
_TIMER = "kbackup.timer"
_VALUES = "kbackup-values.yaml"
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
    """Return the text of each file, beside the configuration file `config` with the text `toml`, apart from the
    environment file."""
    if schedule.kind == "systemd":
        return {
            config.with_name(_SERVICE): service(config, own_program()),
            config.with_name(_TIMER): timer(schedule.at),
        }
    if schedule.kind == "kubernetes":
        return {config.with_name(_VALUES): chart_values(schedule, toml)}
    return {}


def environment_path(schedule: Schedule, config: Path) -> Path | None:
    """Return the file beside `config` that holds the variables of the backup; None if nothing of ours runs it."""
    if schedule.kind == "systemd":
        return config.with_name(_ENVIRONMENT)
    if schedule.kind == "kubernetes":
        return config.with_name(_SECRET_FILE)
    return None


def environment_text(schedule: Schedule, present: str, values: Mapping[str, str | None]) -> str:
    """Return the text of the environment file with these variables, in place of its `present` text. A variable without
    a value stands there empty."""
    if schedule.kind == "systemd":
        return completed(present or "# Variables of kbackup.service. Written by kbackup init.\n", values)
    # kubectl takes the rest of a line as it is.
    lines = [f"# For kubectl create secret generic {_SECRET} --from-env-file\n"]
    for name, value in values.items():
        # A value of several lines has no form there: the variable is left to fill in.
        text = value or ""
        lines.append(f"{name}={text}\n" if len(text.splitlines()) < 2 else f"{name}=\n")
    return "".join(lines)


def written_values(schedule: Schedule, text: str) -> dict[str, str]:
    """Return the variables that the backup gets from the text of an environment file."""
    if schedule.kind == "systemd":
        return values_of(text)
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            values[name] = value
    return values


def own_program() -> list[str]:
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


def java_home(shell_path: str | None, path: str) -> str:
    """Return JAVA_HOME of the `java` in a shell's PATH, "" if Java is in a unit's `path` as well."""
    found = shutil.which("java", path=shell_path)
    if found is None or shutil.which("java", path=path) is not None:
        return ""
    program = Path(found).resolve()
    is_in_home = program.parent.name == "bin"
    return str(program.parent.parent) if is_in_home else ""


def unit_path() -> str:
    """Return the PATH that systemd gives to units: its own default, whatever the shell's is."""
    folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]
    if not Path("/bin").is_symlink():
        # Older systems keep programs in both places.
        folders += ["/sbin", "/bin"]
    return ":".join(folders)


def unit_environment() -> dict[str, str]:
    """Return the variables that a service of the present user has before those of its environment file."""
    environ = {"PATH": unit_path()}
    with suppress(KeyError):
        # systemd sets these for units with a user.
        account = pwd.getpwuid(os.geteuid())
        environ |= {"HOME": account.pw_dir, "SHELL": account.pw_shell}
        environ |= {"USER": account.pw_name, "LOGNAME": account.pw_name}
    return environ


def service(config: Path, command: list[str]) -> str:
    """Return the unit that takes one backup, as the present user."""
    words = [*command[1:], "backup", "--wait", "--quiet", "--json=line", "--config", str(config)]
    check_path("the configuration", str(config))
    check_path("kbackup", " ".join(command))
    # systemd takes a variable from arguments alone, not from the program.
    arguments = [_quoted(word).replace("$", "$$") for word in words]
    start = " ".join([_quoted(command[0]), *arguments])
    # systemd reads the name of this file as a pattern.
    environment_file = _GLOB.sub(_LITERAL, str(config.with_name(_ENVIRONMENT)))
    # The end of the line of a folder may be no blank and no backslash.
    return f"""\
[Unit]
Description=Back up Apache Kafka
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
User={_account()}
WorkingDirectory={_escaped(str(config.parent))}/
EnvironmentFile=-{_escaped(environment_file)}
ExecStart={start}
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
    """Return one word of a command line of a unit, apart from variables."""
    if re.fullmatch(r"[\w@+=:,./-]+", text, re.ASCII):
        return text
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def next_steps(schedule: Schedule, config: Path, to_fill_in: Sequence[str]) -> tuple[str, ...]:
    """Return the commands to run next. The environment file has no values of the variables `to_fill_in`."""
    if schedule.kind == "none":
        named = ""
        if config != Path("kbackup.toml").absolute():
            named = f" --config {quote(str(config))}"
        return f"kbackup check --spark{named}", f"kbackup backup{named}"
    commands: list[str] = []
    file = environment_path(schedule, config)
    if to_fill_in:
        commands.append(f"write the value of {' and of '.join(to_fill_in)} into {quote(str(file))}")
    if schedule.kind == "systemd":
        commands += [
            f"sudo systemctl link {_quoted_path(config, _SERVICE)}",
            f"sudo systemctl enable --now {_quoted_path(config, _TIMER)}",
            f"sudo systemctl start {_SERVICE}   # the first backup, now",
        ]
        return tuple(commands)
    values = _quoted_path(config, _VALUES)
    commands += [
        # The secret comes first: the chart's pods don't start without it.
        f"kubectl --namespace=kbackup create secret generic {_SECRET} --from-env-file={quote(str(file))}",
        f"rm {quote(str(file))}",
        f"helm upgrade --install kbackup infra/helm/kbackup --namespace=kbackup --values {values}",
        "kubectl --namespace=kbackup create job first --from=cronjob/kbackup-nightly   # the first backup, now",
    ]
    return tuple(commands)


def _quoted_path(config: Path, name: str) -> str:
    """Return the path of a file beside the configuration, quoted for a shell."""
    return quote(str(config.with_name(name)))
