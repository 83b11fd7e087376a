"""`kbackup init`: ask for a backup's configuration, try each answer, and write it with what runs it every night."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from kbackup.cli.check import show_step
from kbackup.cli.common.command_context import FlagValues, start_reporter
from kbackup.cli.common.options import bootstrap_option, common_options, key_option, name_options, store_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.init.draft import ConfigDraft, toml_text, write_files
from kbackup.cli.init.questions import ask_archive, ask_cluster, ask_schedule, ask_selection, choose
from kbackup.cli.init.schedule import KINDS, Schedule, ScheduleKind, check_path, next_steps, parse_at, schedule_files
from kbackup.config import Config
from kbackup.errors import EXIT_OK, RefusedError, UsageError
from kbackup.jobs.check import CheckStep, Steps


@dataclass(frozen=True)
class InitReport:
    """`files` are the files that were written, `steps` the trials of the last answers, `next` the commands to run."""

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
        _require(draft, "source.bootstrap.servers", "--bootstrap-server")
        _require(draft, "archive", "--archive")
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
    toml = toml_text(draft.settings)
    texts = {config: toml, **schedule_files(schedule, config, toml)}
    for path in texts:
        dialog.allow(path)
    write_files(texts, dialog.replaced)
    files = tuple(str(path) for path in texts)
    commands = next_steps(schedule, config, draft.variables())
    report = InitReport(str(config), files, dialog.steps, commands)
    _show(report, reporter)
    reporter.document(report)
    return dialog.exit_code


def _require(draft: ConfigDraft, key: str, option: str) -> None:
    if not draft.text(key):
        raise UsageError(f"{key} is not set", f"give {option}")


def _usual_schedule() -> ScheduleKind:
    # The folder exists where systemd is the system's first process.
    return "systemd" if Path("/run/systemd/system").is_dir() else "none"


def _show(report: InitReport, reporter: Reporter) -> None:
    for file in report.files:
        reporter.line(f"wrote {file}")
    reporter.line("next:")
    for text in report.next:
        reporter.line(f"  {text}")


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
        return next((step.exit_code for step in self.steps if step.status == "failed"), EXIT_OK)

    def allow(self, path: Path) -> None:
        """Ask whether to overwrite a file that exists. Raises `RefusedError` if not."""
        if path in self.replaced or not path.exists():
            return
        is_allowed = self.overwrite
        if not is_allowed and self.asks:
            is_allowed = click.confirm(f"{path} exists. Overwrite it?", err=True)
        if not is_allowed:
            raise RefusedError(f"{path} exists; nothing was written", "give --overwrite, or another --config")
        self.replaced.add(path)

    def fill(self, draft: ConfigDraft) -> None:
        """Ask for the answers of each section until they work or are to be kept."""
        # Imported here, because it imports the clients of Kafka and S3.
        from kbackup.jobs import check

        def show(step: CheckStep) -> None:
            show_step(step, self.reporter)

        speaks_tls = check.speaks_tls if self.tries else None
        sections: list[_Section] = [
            (partial(ask_cluster, speaks_tls=speaks_tls), check.try_cluster),
            (ask_archive, check.try_archive),
            (ask_selection, check.try_selection),
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
