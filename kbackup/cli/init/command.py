"""`kbackup init`: ask for a backup's configuration, try it, and write it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import click

from kbackup.cli.check import show_step
from kbackup.cli.common.frame import FlagValues, start_reporter
from kbackup.cli.common.options import common_options, key_option, record_key, s3_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.init import questions
from kbackup.cli.init.questions import ConfigDraft, toml_text
from kbackup.cli.init.schedule import (
    ENVIRONMENT,
    KINDS,
    SECRET,
    Kind,
    Schedule,
    check_path,
    default_kind,
    parse_at,
    schedule_files,
)
from kbackup.config import KEYS
from kbackup.errors import EXIT_OK, RefusedError, UsageError
from kbackup.jobs.check import CheckStep, Steps

MODE = 0o600


def write_files(texts: Mapping[Path, str], replaced: Collection[Path]) -> None:
    """Write files that only their owner reads. After an error or an interrupt none of the new files is there.

    Existing files are replaced only if `replaced` names them. Raises `UsageError` if a file can't be written."""
    drafts: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for path, text in texts.items():
            drafts[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            _write(drafts[path], text)
        for path, draft in drafts.items():
            if path in replaced:
                draft.replace(path)
            else:
                made.append(path)
                _publish(draft, path, made)
    except OSError as error:
        _remove([*made, *drafts.values()])
        name = Path(error.filename2 or error.filename or "").name
        raise UsageError(
            f"{name}: {(error.strerror or str(error)).lower()}", "name a file in a folder that you can write"
        ) from error
    except BaseException:
        _remove([*made, *drafts.values()])
        raise


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _publish(draft: Path, path: Path, made: list[Path]) -> None:
    """Give a file its name, unless another file has it."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        made.remove(path)
        raise
    draft.unlink()


def _remove(paths: Collection[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


# `kbackup init`: ask for a backup's configuration, try each answer, write files.


@dataclass(frozen=True)
class InitReport:
    """`files` are those that were written, `steps` the trials of the last answers, `next` the commands to run."""

    config: str
    files: tuple[str, ...]
    steps: tuple[CheckStep, ...]
    next: tuple[str, ...]


@click.command("init")
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
    "--bootstrap-server",
    "source_bootstrap",
    metavar="HOST:PORT",
    help="Address of the source cluster.",
    expose_value=False,
    callback=record_key(KEYS["source"], "bootstrap.servers"),
)
@key_option("archive", "-a", "--archive")
@key_option("backup.topics", "-t", "--topic", "--topics")
@key_option("backup.exclude_topics", "--exclude-topic", "--exclude-topics")
@key_option("backup.groups", "-g", "--group", "--groups")
@key_option("backup.exclude_groups", "--exclude-group", "--exclude-groups")
@s3_options
@common_options
@click.pass_obj
def command(
    state: FlagValues, yes: bool, overwrite: bool, no_check: bool, kind: Kind | None, at: str, image: str | None
) -> int:
    """Ask for the configuration of a backup, try each answer, and write kbackup.toml.

    Options are the first answers; --set gives further keys. The command connects to the cluster and lists topics, and
    writes, reads and deletes in the store. It writes no secrets: the file refers to variables or files. It also writes
    units of systemd, or values of the Helm chart.
    """
    reporter = start_reporter(state)
    draft = ConfigDraft.of(state.settings)
    config = Path(state.files.config or os.environ.get("KBACKUP_CONFIG") or "kbackup.toml").absolute()
    check_path("the configuration", str(config))
    if yes:
        _require_answers(draft)
    elif not sys.stdin.isatty():
        raise UsageError("init asks for answers, and stdin is not a terminal", "give --yes and options")
    dialog = _Dialog(reporter, not yes, overwrite, not no_check)
    dialog.allow(config)
    dialog.fill(draft)
    if yes and dialog.exit_code:
        reporter.note("nothing was written")
        reporter.document(InitReport(str(config), (), dialog.steps, ()))
        return dialog.exit_code
    schedule = Schedule(kind or default_kind(), parse_at(at), image or "")
    if not yes:
        schedule = questions.ask_schedule(schedule.kind, at, schedule.image)
    toml = toml_text(draft.settings)
    texts = {config: toml, **schedule_files(schedule, config, toml)}
    for path in texts:
        dialog.allow(path)
    write_files(texts, dialog.replaced)
    report = InitReport(str(config), tuple(map(str, texts)), dialog.steps, _next_steps(draft, schedule, config))
    _show(report, reporter)
    reporter.document(report)
    return dialog.exit_code


def _require_answers(draft: ConfigDraft) -> None:
    for path, option in (("source.bootstrap.servers", "--bootstrap-server"), ("archive", "--archive")):
        if not draft.text(path):
            raise UsageError(f"{path} is not set", f"give {option}")


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
        if not self.overwrite and not (self.asks and questions.ask_overwrite(path)):
            raise RefusedError(f"{path} exists; nothing was written", "give --overwrite, or another --config")
        self.replaced.add(path)

    def fill(self, draft: ConfigDraft) -> None:
        """Ask for the answers of each section until they work or are to be kept."""
        from kbackup.jobs import check  # imports clients of Kafka and S3

        sections: tuple[tuple[Callable[[ConfigDraft], None], Callable[[Steps, check.Configured], None]], ...] = (
            (questions.ask_cluster, check.try_cluster),
            (questions.ask_archive, check.try_archive),
            (questions.ask_selection, check.try_selection),
        )
        for ask, attempt in sections if self.asks else sections[1:]:  # the last begins with the first trial
            steps = Steps(self._show)
            while True:
                if self.asks:
                    ask(draft)
                steps = Steps(self._show)
                if self.tries:
                    attempt(steps, draft.config)
                if not (self.asks and steps.exit_code and questions.ask_correct()):
                    break
            self.steps += tuple(steps.done)

    def _show(self, step: CheckStep) -> None:
        show_step(step, self.reporter)


def _next_steps(draft: ConfigDraft, schedule: Schedule, config: Path) -> tuple[str, ...]:
    """Return the commands that are left to the user."""
    named = "" if config == Path("kbackup.toml").absolute() else f" --config {quote(str(config))}"
    commands = [f"kbackup check --spark{named}", f"kbackup backup{named}"]
    variables = draft.variables()
    if schedule.kind == "systemd":
        if variables:
            assignments = " and ".join(f"{quote(name)}=…" for name in variables)
            file = quote(str(config.with_name(ENVIRONMENT)))
            commands.append(f"write {assignments} into {file}, which only you may read")
        units = [quote(str(config.with_name(name))) for name in ("kbackup.service", "kbackup.timer")]
        commands += [f"sudo systemctl link {units[0]}", f"sudo systemctl enable --now {units[1]}"]
    if schedule.kind == "kubernetes":
        commands.append(f"kubectl --namespace=kbackup create secret generic {SECRET} --from-env-file=FILE")
        values = quote(str(config.with_name("kbackup-values.yaml")))
        commands.append(f"helm upgrade --install kbackup infra/helm/kbackup --namespace=kbackup --values {values}")
    return tuple(commands)


def _show(report: InitReport, reporter: Reporter) -> None:
    for file in report.files:
        reporter.line(f"wrote {file}")
    reporter.line("next:")
    for text in report.next:
        reporter.line(f"  {text}")
