"""`kbackup init`: ask for a backup's configuration, try each answer, and write it with what runs it every night."""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Literal, TypeVar, get_args

import click

from kbackup.cli.check import show_step
from kbackup.cli.common.command_context import FlagValues, start_reporter
from kbackup.cli.common.options import bootstrap_option, common_options, key_option, name_options, store_options
from kbackup.cli.common.output import Reporter
from kbackup.config import KEYS, Config, ConfigFiles, Setting, SettingOrigin, exposes_secret, load
from kbackup.config.values import convert
from kbackup.errors import EXIT_OK, RefusedError, UsageError
from kbackup.jobs.check import CheckStep, Steps
from kbackup.store import registry
from kbackup.util.text import printable

T = TypeVar("T")
W = TypeVar("W", bound=str)
ScheduleKind = Literal["systemd", "kubernetes", "none"]
KINDS: tuple[ScheduleKind, ...] = get_args(ScheduleKind)


@dataclass(frozen=True)
class InitReport:
    """`files` are those that were written, `steps` the trials of the last answers, `next` the commands to run."""

    config: str
    files: tuple[str, ...]
    steps: tuple[CheckStep, ...]
    next: tuple[str, ...]


@click.command("init", epilog="Example: kbackup init --schedule systemd")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take the answers from options.")
@click.option("--overwrite", is_flag=True, help="Overwrite files that exist.")
@click.option("--no-check", is_flag=True, help="Write the files without trying the answers.")
@click.option(
    "--schedule",
    "kind",
    type=click.Choice(KINDS),
    default=None,
    help="What runs the backup. [default systemd where it runs, else none]",
)
@click.option("--run-at", "at", default="02:30", show_default=True, metavar="HH:MM", help="Time of the run.")
@click.option("--image", metavar="NAME", help="Repository of kbackup's image, for Kubernetes.")
@bootstrap_option("source")
@key_option("archive", "-a", "--archive")
@name_options("backup.topics", "backup.groups")
@store_options
@common_options
@click.pass_obj
def command(
    state: FlagValues, yes: bool, overwrite: bool, no_check: bool, kind: ScheduleKind | None, at: str, image: str | None
) -> int:
    """Ask for the configuration of a backup, try each answer, and write kbackup.toml.

    Options are the first answers; --set gives further keys. The command connects to the cluster and lists topics, and
    writes, reads and deletes in the store. It writes no secrets: the file refers to variables or files. It also writes
    units of systemd, or values of the Helm chart.
    """
    reporter = start_reporter(state)
    draft = ConfigDraft.of(state.settings)
    config = Path(state.config_file or os.environ.get("KBACKUP_CONFIG") or "kbackup.toml").absolute()
    check_path("the configuration", str(config))
    if yes:
        for key, option in (("source.bootstrap.servers", "--bootstrap-server"), ("archive", "--archive")):
            if not draft.text(key):
                raise UsageError(f"{key} is not set", f"give {option}")
    elif not sys.stdin.isatty():
        raise UsageError("init asks for answers, and stdin is not a terminal", "give --yes and options")
    dialog = _Dialog(reporter, not yes, overwrite, not no_check)
    dialog.allow(config)
    dialog.fill(draft)
    if yes and dialog.exit_code:
        reporter.note("nothing was written")
        reporter.document(InitReport(str(config), (), dialog.steps, ()))
        return dialog.exit_code
    default: ScheduleKind = "systemd" if Path("/run/systemd/system").is_dir() else "none"  # where systemd runs
    schedule = Schedule(kind or default, parse_at(at), image or "")
    if not yes:
        schedule = _ask_schedule(schedule.kind, at, schedule.image)
    toml = toml_text(draft.settings)
    texts = {config: toml, **schedule_files(schedule, config, toml)}
    for path in texts:
        dialog.allow(path)
    write_files(texts, dialog.replaced)
    files = tuple(map(str, texts))
    report = InitReport(str(config), files, dialog.steps, _next_steps(draft, schedule, config))
    for file in report.files:
        reporter.line(f"wrote {file}")
    reporter.line("next:")
    for text in report.next:
        reporter.line(f"  {text}")
    reporter.document(report)
    return dialog.exit_code


@dataclass
class _Dialog:
    """Asks and tries; `replaced` are the existing files to overwrite."""

    reporter: Reporter
    asks: bool
    overwrite: bool
    tries: bool
    replaced: set[Path] = field(default_factory=set)
    steps: tuple[CheckStep, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the first failed step among the answers that stay."""
        return next((step.exit_code for step in self.steps if step.status == "failed"), EXIT_OK)

    def allow(self, path: Path) -> None:
        """Ask whether to overwrite a file that exists. Raises `RefusedError` if not."""
        if path in self.replaced or not path.exists():
            return
        if not self.overwrite and not (self.asks and click.confirm(f"{path} exists. Overwrite it?", err=True)):
            raise RefusedError(f"{path} exists; nothing was written", "give --overwrite, or another --config")
        self.replaced.add(path)

    def fill(self, draft: ConfigDraft) -> None:
        """Ask for the answers of each section until they work or are to be kept."""
        from kbackup.jobs import check  # imports clients of Kafka and S3

        sections: tuple[tuple[Callable[[ConfigDraft], None], Callable[[Steps, check.Configured], None]], ...] = (
            (partial(_ask_cluster, speaks_tls=check.speaks_tls if self.tries else None), check.try_cluster),
            (_ask_archive, check.try_archive),
            (_ask_selection, check.try_selection),
        )
        for ask, attempt in sections if self.asks else sections[1:]:  # the last begins with the first trial
            while True:
                if self.asks:
                    ask(draft)
                steps = Steps(lambda step: show_step(step, self.reporter))
                if self.tries:
                    attempt(steps, draft.config)
                if not (self.asks and steps.exit_code):
                    break
                if _choice("Correct the answers or keep them?", "correct", ("correct", "keep")) == "keep":
                    break
            self.steps += tuple(steps.done)


def _next_steps(draft: ConfigDraft, schedule: Schedule, config: Path) -> tuple[str, ...]:
    named = "" if config == Path("kbackup.toml").absolute() else f" --config {quote(str(config))}"
    commands = [f"kbackup check --spark{named}", f"kbackup backup{named}"]
    variables = draft.variables()
    if schedule.kind == "systemd":
        if variables:
            assignments = " and ".join(f"{quote(name)}=…" for name in variables)
            file = quote(str(config.with_name(_ENVIRONMENT)))
            commands.append(f"write {assignments} into {file}, which only you may read")
        service_file, timer_file = config.with_name("kbackup.service"), config.with_name("kbackup.timer")
        commands.append(f"sudo systemctl link {quote(str(service_file))}")
        commands.append(f"sudo systemctl enable --now {quote(str(timer_file))}")
    if schedule.kind == "kubernetes":
        commands.append(f"kubectl --namespace=kbackup create secret generic {_SECRET} --from-env-file=FILE")
        # The secret comes first: the chart's pods don't start without it.
        values = quote(str(config.with_name("kbackup-values.yaml")))
        commands.append(f"helm upgrade --install kbackup infra/helm/kbackup --namespace=kbackup --values {values}")
    return tuple(commands)


# The configuration to write.


_ORIGIN = SettingOrigin("option", "kbackup init")
_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")
_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass
class ConfigDraft:
    """`settings` are values as they are written, by key path; an empty value is not written. `environ` also has the
    secrets that were typed for a trial."""

    settings: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def of(cls, settings: Iterable[Setting]) -> ConfigDraft:
        """Return the draft of flags. Raises `UsageError` for a secret: the file holds references to secrets alone."""
        draft = cls()
        for path, value, _ in settings:
            if exposes_secret(path, value):
                raise UsageError(
                    f"{path} is a secret, which is not written to a file",
                    "name where it is: ${env:NAME} or ${file:/path}",
                )
            draft.settings[path] = value
        return draft

    def text(self, path: str) -> str:
        """Return the value of a key as text; "" if it has none."""
        value = self.settings.get(path, "")
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    def put(self, path: str, text: str) -> None:
        """Set a key; an empty text removes it. Raises `UsageError` for an invalid value."""
        if not text:
            self.settings.pop(path, None)
        else:
            value = convert(KEYS[path], text, str(_ORIGIN)) if path in KEYS else text
            self.settings[path] = list(value) if isinstance(value, tuple) else text

    def remove_all(self, prefix: str | tuple[str, ...]) -> None:
        """Remove the keys that begin with a prefix, or with one of several."""
        self.settings = {path: value for path, value in self.settings.items() if not path.startswith(prefix)}

    def config(self) -> Config:
        """Return the configuration of the draft. Raises `UsageError` for an invalid value."""
        settings = [Setting(path, value, _ORIGIN) for path, value in self.settings.items()]
        return load(settings, ConfigFiles(config=os.devnull), self.environ).config

    def variables(self) -> list[str]:
        """Return the variables that values refer to."""
        return sorted({name for path in self.settings for name in _VARIABLE.findall(self.text(path))})


def toml_text(settings: Mapping[str, object]) -> str:
    """Return kbackup.toml with values by key path: text, or lists of text."""
    sections: dict[str, list[str]] = {"": []}
    for path, value in settings.items():
        section, dot, name = path.partition(".")
        if not dot:
            section, name = "", path
        if isinstance(value, list | tuple):
            items = [_string(str(item)) for item in value]
            text = f"[{', '.join(items)}]"
        else:
            text = _string(str(value))
        sections.setdefault(section, []).append(f"{_key(name)} = {text}\n")
    # Keys without a section come first: after the heading of a section they would belong to the section.
    lines = ["# Written by kbackup init. All keys: kbackup config --keys\n", *sections.pop("")]
    for section, entries in sections.items():
        lines.append(f"\n[{_key(section)}]\n")
        lines += entries
    return "".join(lines)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """Return a basic string of TOML, which has the escapes of JSON, and one more character to escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_files(texts: Mapping[Path, str], replaced: Collection[Path]) -> None:
    """Write files that only their owner reads. After an error or an interrupt none of the new files is there.

    Existing files are replaced only if `replaced` names them. Raises `UsageError` if a file can't be written."""
    drafts: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for path, text in texts.items():
            draft = drafts[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
        for path, draft in drafts.items():
            if path in replaced:
                draft.replace(path)
            else:
                made.append(path)
                _publish(draft, path, made)
    except BaseException as error:
        for path in (*made, *drafts.values()):
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        name = Path(error.filename2 or error.filename or "").name
        raise UsageError(
            f"{name}: {(error.strerror or str(error)).lower()}", "name a file in a folder that you can write"
        ) from error


def _publish(draft: Path, path: Path, made: list[Path]) -> None:
    """Give a file its name, unless another file has it."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        made.remove(path)
        raise
    draft.unlink()


# The questions. Each shows the present answer and changes the draft.


_PROTOCOLS = {True: ("SSL", "SASL_SSL"), False: ("PLAINTEXT", "SASL_PLAINTEXT")}
"""By whether the brokers speak TLS."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_OAUTH = "source.sasl.oauthbearer"
_REFERENCE = re.compile(r"\$?\{?(env|file):([^}]+)\}?")


def _ask_cluster(draft: ConfigDraft, speaks_tls: Callable[[str], bool | None] | None) -> None:
    click.echo("\nThe cluster to back up", err=True)
    _ask_key(draft, "source.bootstrap.servers", "Brokers (host:port, with commas between)", required=True)
    protocols: tuple[str, ...] = _PROTOCOLS[False] + _PROTOCOLS[True]
    tls = speaks_tls(draft.text("source.bootstrap.servers")) if speaks_tls is not None else None
    if tls is not None:
        spoken = "TLS" if tls else "no TLS"
        click.echo(f"The brokers speak {spoken}.", err=True)
        protocols = _PROTOCOLS[tls]
    protocol = _ask_choice(draft, "source.security.protocol", "Security protocol", protocols)
    if protocol.endswith("SSL"):
        _ask_key(draft, "source.ssl.ca.location", "PEM file of the CA (empty: the system's certificates)", file=True)
    else:
        draft.remove_all("source.ssl.")
    if not protocol.startswith("SASL"):
        draft.remove_all("source.sasl.")
        return
    if _ask_choice(draft, "source.sasl.mechanism", "SASL mechanism", _MECHANISMS) == "OAUTHBEARER":
        draft.remove_all(("source.sasl.username", "source.sasl.password"))
        draft.put(f"{_OAUTH}.method", "oidc")
        _ask_key(draft, f"{_OAUTH}.token.endpoint.url", "URL of the token endpoint", required=True)
        _ask_key(draft, f"{_OAUTH}.client.id", "Client id", required=True)
        _ask_secret(draft, f"{_OAUTH}.client.secret", "env:KAFKA_CLIENT_SECRET")
        _ask_key(draft, f"{_OAUTH}.scope", "Scope (empty: none)")
        return
    draft.remove_all(_OAUTH)
    _ask_key(draft, "source.sasl.username", "User", required=True)
    _ask_secret(draft, "source.sasl.password", "env:KAFKA_PASSWORD")


def _ask_archive(draft: ConfigDraft) -> None:
    click.echo("\nThe archive", err=True)
    _ask_key(draft, "archive", f"Address ({registry.forms()})", required=True)
    asked = None
    with suppress(UsageError):  # an invalid address is told by the check that follows
        asked = registry.kind_of(draft.text("archive"))
    for kind in registry.KINDS.values():
        if kind is not asked:
            draft.remove_all(f"{kind.section}.")
            continue
        for key, text, variable, of in kind.questions:
            path = f"{kind.section}.{key}"
            if of and not draft.text(f"{kind.section}.{of}"):
                draft.put(path, "")
            elif variable:
                _ask_secret(draft, path, variable)
            else:
                _ask_key(draft, path, text)


def _ask_selection(draft: ConfigDraft) -> None:
    click.echo(
        "\nWhat to back up: names or /regular expressions/, with commas between. '-' removes an answer.", err=True
    )
    _ask_key(draft, "backup.topics", "Topics (empty: all but internal ones)")
    _ask_key(draft, "backup.exclude_topics", "Topics to exclude")
    _ask_key(draft, "backup.groups", "Consumer groups (empty: all)")
    _ask_key(draft, "backup.exclude_groups", "Consumer groups to exclude")


def _ask_schedule(kind: ScheduleKind, at: str, image: str) -> Schedule:
    click.echo("\nThe nightly run", err=True)
    kind = _choice("Run it by", kind, KINDS)
    moment = parse_at(at) if kind == "none" else _prompt("Time of the day", at, parse_at)
    if kind == "kubernetes":
        image = _prompt("Repository of kbackup's image", image or None, str.strip)
    return Schedule(kind, moment, image)


def _ask_key(draft: ConfigDraft, path: str, question: str, required: bool = False, file: bool = False) -> None:
    """Ask for the value of a key; '-' removes an optional one. A `file` must be there."""

    def put(answer: str) -> None:
        text = "" if answer.strip() == "-" and not required else answer.strip()
        if file and text and not Path(text).is_file():
            raise UsageError(f"there is no file {text}", "name a readable file")
        draft.put(path, text)

    _prompt(question, draft.text(path) or (None if required else ""), put)


def _ask_choice(draft: ConfigDraft, path: str, question: str, choices: Sequence[str]) -> str:
    present = draft.text(path) or choices[0]
    known = choices if present in choices else (*choices, present)
    draft.put(path, _choice(question, present, known))
    return draft.text(path)


def _ask_secret(draft: ConfigDraft, path: str, default: str) -> None:
    """Ask where a secret is. That of a variable which is not set is asked for, and used for trials alone."""
    present = _REFERENCE.fullmatch(draft.text(path))
    question = f"Where is {path.partition('.')[2]} (env:NAME or file:/path)"
    kind, name = _prompt(question, f"{present[1]}:{present[2]}" if present else default, _parse_reference)
    draft.put(path, f"${{{kind}:{name}}}")
    if kind == "env" and not draft.environ.get(name):
        value = _prompt(f"{name} is not set here; its value, which is not written", None, str, hide_input=True)
        draft.environ[name] = value


def _parse_reference(text: str) -> tuple[str, str]:
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            "the file holds no secrets", "write env:NAME for a variable, or file:/path for a file with the secret"
        )
    return match[1], match[2]


def _prompt(question: str, default: str | None, parse: Callable[[str], T], *, hide_input: bool = False) -> T:
    """Ask on stderr, as stdout has data alone, until `parse` accepts the answer."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    answer: T = click.prompt(
        question, default=default, show_default=bool(default), value_proc=parsed, hide_input=hide_input, err=True
    )
    return answer


def _choice(question: str, default: str, choices: Sequence[W]) -> W:
    known = click.Choice(choices, case_sensitive=False)
    return _prompt(f"{question} ({', '.join(choices)})", default, lambda text: known.convert(text.strip(), None, None))


# What runs a backup every night: units of systemd, or values of the Helm chart.


_ENVIRONMENT = "kbackup.env"
_SECRET = "kbackup-backup"  # noqa: S105 (the name of a Kubernetes secret)
_GLOB, _LITERAL = re.compile(r"[\\*?\[]"), r"\\\g<0>"
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
        beside = Path(sys.executable).with_name("kbackup")
        found = str(beside) if beside.is_file() else shutil.which("kbackup")
        own = [found] if found else [sys.executable, "-m", "kbackup"]
        return {
            config.with_name("kbackup.service"): service(config, own, os.environ),
            config.with_name("kbackup.timer"): timer(schedule.at),
        }
    if schedule.kind == "kubernetes":
        return {config.with_name("kbackup-values.yaml"): chart_values(schedule, toml)}
    return {}


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
    for name, path in (("the configuration", str(config)), ("kbackup", " ".join(command)), ("JAVA_HOME", java)):
        check_path(name, path)
    # systemd takes a variable from arguments alone: neither from the program, nor from an assignment.
    arguments = [_quoted(word).replace("$", "$$") for word in words]
    start = " ".join([_quoted(command[0]), *arguments])
    environment = ""
    if java:
        assignment = _quoted(f"JAVA_HOME={java}")
        environment = f"Environment={assignment}\n"
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
    config = "".join(f"  {line}\n" if line else "\n" for line in toml.splitlines())
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
