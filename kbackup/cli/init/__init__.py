"""`kbackup init`: ask for a backup's configuration, try each answer, and write it with what runs it every night."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote

import click

from kbackup.cli.check import show_step
from kbackup.cli.common.command_context import FlagValues, start_reporter
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bootstrap_option, common_options, key_option, name_options, store_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.init.draft import ConfigDraft, toml_text, write_files
from kbackup.cli.init.environment import Environment, VariableReport
from kbackup.cli.init.questions import (
    RECEIVERS,
    Receiver,
    ask_archive,
    ask_cluster,
    ask_notifications,
    ask_registry,
    ask_schedule,
    ask_selection,
    choose,
    put_receiver,
)
from kbackup.cli.init.schedule import (
    KINDS,
    Schedule,
    ScheduleKind,
    check_path,
    environment_path,
    java_home,
    next_steps,
    own_program,
    parse_at,
    schedule_files,
    unit_path,
)
from kbackup.cli.init.variables import Variable, files_of_this_machine, used_variables
from kbackup.config import Config
from kbackup.errors import EXIT_OK, RefusedError, UsageError
from kbackup.jobs.check import CheckStep, Steps


@dataclass(frozen=True)
class InitReport:
    """`files` are the files that were written, `steps` the trials of the last answers, `clean_steps` the check with the
    variables of the environment file alone, `next` the commands to run."""

    config: str
    files: tuple[str, ...]
    steps: tuple[CheckStep, ...]
    next: tuple[str, ...]
    variables: tuple[VariableReport, ...] = ()
    clean_steps: tuple[CheckStep, ...] = ()


@click.command("init", cls=SectionedCommand, epilog="Example: kbackup init --schedule systemd")
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
@click.option(
    "--notify",
    "receiver",
    type=click.Choice(RECEIVERS),
    default=None,
    help="What takes messages of bad runs: the webhook of a chat, or one of JSON. Its URL is in WEBHOOK_URL, or "
    "notify.url.",
)
@click.option(
    "--write-secrets/--no-write-secrets",
    "writes_secrets",
    default=None,
    help="Write the values of secret variables into the environment file. [default as answered; not with --yes]",
)
@bootstrap_option("source")
@key_option("archive", "-a", "--archive")
@name_options("backup.topics", "backup.groups")
@key_option("schema_registry.url", "--schema-registry", help="URL of the source's schema registry.")
@store_options
@common_options
@click.pass_obj
def command(
    state: FlagValues,
    yes: bool,
    overwrite: bool,
    no_check: bool,
    kind: ScheduleKind | None,
    at: str,
    image: str | None,
    receiver: Receiver | None,
    writes_secrets: bool | None,
) -> int:
    """Ask for the configuration of a backup, try each answer, and write kbackup.toml.

    Options are the first answers; --set gives further keys. The command connects to the cluster and lists topics,
    writes, reads and deletes in the store, reads the schema registry, and sends a test message to the webhook.

    kbackup.toml has no secrets: it refers to variables or files. For systemd, the command also writes units and the
    environment file of their variables; for Kubernetes, values of the Helm chart and the variables of its secret. At
    the end it runs 'kbackup check' with these variables alone.
    """
    reporter = start_reporter(state)
    draft = ConfigDraft.of(state.settings)
    if receiver is not None:
        put_receiver(draft, receiver)
    config = Path(state.config_file or os.environ.get("KBACKUP_CONFIG") or "kbackup.toml").absolute()
    check_path("the configuration", str(config))
    if yes:
        _require(draft, "source.bootstrap.servers", "--bootstrap-server")
        _require(draft, "archive", "--archive")
        draft.take_store_variables()
    elif not sys.stdin.isatty():
        raise UsageError("init asks for answers, and stdin is not a terminal", "give --yes and options")
    dialog = _Dialog(reporter, not yes, overwrite, not no_check)
    dialog.allow(config)
    dialog.fill(draft)
    if yes and dialog.exit_code:
        reporter.note("nothing was written")
        reporter.document(InitReport(str(config), (), dialog.steps, ()))
        return dialog.exit_code
    schedule = Schedule(kind or _usual_schedule(), parse_at(at), image or "")
    if not yes:
        schedule = ask_schedule(schedule.kind, at, schedule.image)
    return _write(dialog, draft, config, schedule, writes_secrets)


def _write(dialog: _Dialog, draft: ConfigDraft, config: Path, schedule: Schedule, writes_secrets: bool | None) -> int:
    """Write the files, check them with the variables of the service alone, and report. Return the exit code."""
    reporter = dialog.reporter
    toml = toml_text(draft.settings)
    texts = {config: toml, **schedule_files(schedule, config, toml)}
    for path in texts:
        dialog.allow(path)
    environment = Environment(schedule, environment_path(schedule, config), _variables_of(draft, schedule))
    if environment.path is not None:
        environment.complete(dialog.writes_secrets(environment, writes_secrets))
        if environment.is_changed:
            dialog.allow(environment.path, "Change its variables?")
            texts[environment.path] = environment.text
    write_files(texts, dialog.replaced)
    files = tuple(str(path) for path in texts)
    _show_files(files, environment, reporter)
    clean_steps: tuple[CheckStep, ...] = ()
    if dialog.tries and environment.path is not None:
        from kbackup.cli.init.proof import check_clean

        reporter.line(f"check with the variables of {environment.path} alone:")
        named = files_of_this_machine(draft)
        show = partial(show_step, reporter=reporter)
        clean_steps = check_clean(own_program(), config, named, environment, show)
    commands = next_steps(schedule, config, environment.to_fill_in)
    reporter.line("next:")
    for text in commands:
        reporter.line(f"  {text}")
    if schedule.kind == "systemd" and environment.variables:
        reporter.line("commands that you type need the same variables; to give them to your shell:")
        reporter.line(f"  set -a; . {quote(str(environment.path))}; set +a")
    report = InitReport(str(config), files, dialog.steps, commands, environment.report(), clean_steps)
    reporter.document(report)
    return dialog.exit_code or _exit_code_of(clean_steps)


def _require(draft: ConfigDraft, key: str, option: str) -> None:
    if not draft.text(key):
        raise UsageError(f"{key} is not set", f"give {option}")


def _usual_schedule() -> ScheduleKind:
    # The folder exists where systemd is the system's first process.
    return "systemd" if Path("/run/systemd/system").is_dir() else "none"


def _variables_of(draft: ConfigDraft, schedule: Schedule) -> list[Variable]:
    if schedule.kind == "systemd" and not draft.environ.get("JAVA_HOME"):
        draft.environ["JAVA_HOME"] = java_home(draft.environ.get("PATH"), unit_path())
    return used_variables(draft, on_this_machine=schedule.kind != "kubernetes")


def _exit_code_of(steps: Sequence[CheckStep]) -> int:
    """Return the exit code of the first failed step."""
    return next((step.exit_code for step in steps if step.status == "failed"), EXIT_OK)


def _show_files(files: Sequence[str], environment: Environment, reporter: Reporter) -> None:
    for file in files:
        reporter.line(f"wrote {file}")
    reports = environment.report()
    if reports:
        place = f"in {environment.path}" if environment.path is not None else "whatever runs it must have them"
        reporter.line(f"variables that the backup uses ({place}):")
        width = max(len(report.name) for report in reports)
        for report in reports:
            state = "" if report.state == "named" else f"  {report.state}"
            reporter.line(f"  {report.name:<{width}}{state}".rstrip())
    for variable in environment.variables:
        if variable.is_temporary:
            reporter.warning(
                f"{variable.name} is of temporary credentials: backups fail when they expire; use lasting credentials"
            )


_Section = tuple[Callable[[ConfigDraft], None], Callable[[Steps, Callable[[], Config]], None]]
"""How to ask for the answers of a section, and how to try them."""


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
        return _exit_code_of(self.steps)

    def allow(self, path: Path, question: str = "Overwrite it?") -> None:
        """Ask whether to overwrite a file that exists. Raises `RefusedError` if not."""
        if path in self.replaced or not path.exists():
            return
        is_allowed = self.overwrite
        if not is_allowed and self.asks:
            is_allowed = click.confirm(f"{path} exists. {question}", err=True)
        if not is_allowed:
            raise RefusedError(f"{path} exists; nothing was written", "give --overwrite, or another --config")
        self.replaced.add(path)

    def writes_secrets(self, environment: Environment, asked: bool | None) -> bool:
        """Return whether to write the values of secrets into the environment file: as `asked` for, or as answered."""
        names = environment.secrets
        if asked is not None or not names or not self.asks:
            return bool(asked)
        question = f"Write the value of {', '.join(names)} into {environment.path}, which only you may read?"
        return click.confirm(question, default=True, err=True)

    def fill(self, draft: ConfigDraft) -> None:
        """Ask for the answers of each section until they work or are to be kept."""
        # Imported here, because it imports the clients of Kafka and S3.
        from kbackup.cli.init.notifications import try_webhook
        from kbackup.jobs import check

        def show(step: CheckStep) -> None:
            show_step(step, self.reporter)

        speaks_tls = check.speaks_tls if self.tries else None
        sections: list[_Section] = [
            (partial(ask_cluster, speaks_tls=speaks_tls), check.try_cluster),
            (ask_archive, check.try_archive),
            (ask_selection, check.try_selection),
            (ask_registry, check.try_registry),
            (ask_notifications, try_webhook),
        ]
        if not self.asks:
            # The trial of the selection begins with the trial of the cluster: without questions, one is enough.
            sections = sections[1:]
        for ask, attempt in sections:
            while True:
                if self.asks:
                    ask(draft)
                steps = Steps(show)
                if self.tries:
                    attempt(steps, draft.config)
                if not self.asks or not steps.exit_code:
                    break
                if choose("Correct the answers or keep them?", "correct", ("correct", "keep")) == "keep":
                    break
            self.steps += tuple(steps.done)
