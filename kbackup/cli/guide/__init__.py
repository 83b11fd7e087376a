"""`kbackup restore --guide`: show what a backup would still save, ask what happened, and print the commands that mend
it. The dry run runs at once, the restore if the user wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

import click

from kbackup.archive.restores.target_topics import created_again
from kbackup.cli.common.command_context import CommandContext, FlagValues
from kbackup.cli.common.tables import Column, human_age
from kbackup.cli.guide.answers import GuideAnswers, GuideQuestion, open_answers, yes_or_no
from kbackup.cli.guide.archived import GuidedArchive, SourceSince, ask_source, open_guided
from kbackup.cli.guide.cases import CASES, Dialog, GuideRemedy, Step, Words, case_of
from kbackup.cli.guide.clusters import GuidedTarget
from kbackup.cli.guide.processes import run_kbackup
from kbackup.config import Setting, exposes_secret
from kbackup.config.times import shown_time
from kbackup.errors import EXIT_LOSS, EXIT_OK, InterruptedByUserError, RefusedError, UsageError
from kbackup.jobs.newer import unarchived_count, unarchived_records
from kbackup.util.text import join_names, kbackup_command, plural
from kbackup.util.times import ms_of

_ROWS = 20  # partitions with newer records that are listed
_NAMED = 10  # topics and groups that are gone from the source, by name
_MAYBE = ("backup", "without_backup", "without_acls", "after_newest", "target", "run")
"""Keys of questions that are not asked each time: a file may always answer them."""
_KEPT = ("restore.state", "restore.restore_id")
"""Keys of `[restore]` that a guide takes from options. All others are what it asks for."""


def run_guide(context: CommandContext, file: BinaryIO | None) -> int:
    """Ask, print the commands, and run the first one; the second one, too, if that is wanted. Return the exit code of
    the last command that ran. Answers come from the terminal, or from `file`. Raises `UsageError` without either."""
    flags = click.get_current_context().ensure_object(FlagValues)
    if flags.json:
        raise UsageError("--guide prints no document", "leave --json out")
    _check_settings(flags.settings)
    answers = open_answers(file)
    archive = open_guided(context)
    _show_age(context, archive)
    target = _configured_target(context)
    if target is None:
        click.echo("No cluster to restore into is configured: after what happened, the guide asks for its address.")
        click.echo("  If it takes a login or TLS, write [target] into kbackup.toml before, or give --target-config.")
    since = ask_source(context, archive)
    _show_since(context, since)
    before_backup: str | None = None
    if _take_backup(context, flags, answers, since):
        before_backup = archive.groups_captured_at
        archive = open_guided(context)
        _show_age(context, archive)
    click.echo()
    for number, each in enumerate(CASES, start=1):
        click.echo(f"  {number}  {each.title}")
    names = [each.name for each in CASES]
    chosen = answers.answer(GuideQuestion("case", "What happened?", case_of, words=names))
    case = next(each for each in CASES if each.name == chosen)
    click.echo(f"  that is: {case.title}")
    dialog = Dialog(
        context=context,
        archive=archive,
        answers=answers,
        recreated=since.recreated,
        before_backup=before_backup,
        given_id=context.config.restore.restore_id,
        target=target,
    )
    if target is None and not case.asks_cluster:
        dialog.ask_target()
    remedy = case.remedy(dialog)
    answers.finish(_MAYBE)
    common = (*_common_words(context, flags), *dialog.target_words)
    show_commands(remedy, common)
    return _run(remedy, answers, common)


# Before anything else: how old the archive is, and what a backup would still save.


class _Behind(NamedTuple):
    """A partition of the source with records that are in no restore point; `records` is their number, or words for
    what it is at most."""

    topic: str
    partition: int
    records: int | str


_BEHIND: Sequence[Column[_Behind]] = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("in no restore point", "records"),
)


def _take_backup(context: CommandContext, flags: FlagValues, answers: GuideAnswers, since: SourceSince) -> bool:
    """Offer a backup where the source has records that are in no restore point. Return whether one was taken."""
    if not unarchived_records(since.newer):
        return False
    command = ("backup", *_backup_words(context, flags))
    click.echo(f"While the source still lives, take a backup first: {kbackup_command(*command)}")
    if since.role != "source":
        click.echo("  Run it where the source is configured: here, no cluster is named as [source].")
        return False
    if answers.answer(GuideQuestion("backup", "Run it now? (yes, no)", yes_or_no, "yes")) == "no":
        return False
    code = run_kbackup(command)
    if code in (EXIT_OK, EXIT_LOSS):
        return True
    if code == InterruptedByUserError.exit_code:
        raise click.Abort
    click.echo(f"The backup ended with exit code {code}.")
    if answers.answer(GuideQuestion("without_backup", "Go on without it? (yes, no)", yes_or_no, "no")) == "no":
        raise RefusedError("the backup failed", "mend what it names, and begin again")
    return False


def _show_age(context: CommandContext, archive: GuidedArchive) -> None:
    point = archive.newest
    click.echo(f"archive {archive.store.url}")
    if point is not None:
        at = shown_time(ms_of(point.started_at), context.reporter.time_zone)
        click.echo(f"newest restore point: {point.number}, taken {human_age(point.started_at)}, at {at}")


def _show_since(context: CommandContext, since: SourceSince) -> None:
    """Show which records of the source are in no restore point."""
    if since.problem:
        click.echo(f"What the source has since is not known: {since.problem}")
        click.echo("  If a broker of it still answers, run 'kbackup backup' before anything else.")
        return
    show_gone(since)
    rows: list[_Behind] = []
    for topic in since.newer:
        for each in topic.unarchived:
            records = each.records if topic.exact else f"up to {each.records:,}"
            rows.append(_Behind(topic.topic, each.partition, records))
    if not rows:
        click.echo("Every record of the source is in a restore point.")
        return
    context.reporter.table(_BEHIND, rows[:_ROWS])
    if len(rows) > _ROWS:
        click.echo(f"and {plural(len(rows) - _ROWS, 'partition')} more")
    for topic in since.newer:
        if topic.recreated:
            click.echo(f"since then, {created_again(topic.topic, topic.restored_by)}")
    click.echo(f"{unarchived_count(since.newer)} of the source would be lost with it.")


def show_gone(since: SourceSince) -> None:
    """Name the topics and groups of the archive that the source no longer has: most likely, they are what is to be
    restored."""
    for kind, gone in (("topic", since.gone_topics), ("consumer group", since.gone_groups)):
        if gone:
            named = [f"{name} (restore point {point})" for name, point in gone.items()]
            count = plural(len(gone), kind)
            click.echo(f"In the archive, and no longer in the source: {count}, {join_names(named, _NAMED)}")
    if since.groups_problem:
        click.echo(f"Which consumer groups the source no longer has is not known: {since.groups_problem}")


def _configured_target(context: CommandContext) -> GuidedTarget | None:
    servers = context.config.target.get("bootstrap.servers")
    return GuidedTarget(context.config.target, servers) if servers else None


# The commands of a case.


def show_commands(remedy: GuideRemedy, common: Words) -> None:
    """Print all commands, in the order in which to run them."""
    for sentence in remedy.cheaper:
        click.echo(f"\n{sentence}")
    click.echo(f"\nStop {remedy.stop} first. Then, one line after the other:\n")
    for step in (remedy.dry_run, remedy.run, remedy.verify):
        _show_step(step, common)


def _show_step(step: Step, common: Words) -> None:
    why = step.why
    if step.undo:
        why += f"; to undo it: {kbackup_command(*step.undo, *common)}"
    click.echo(f"  # {why}\n  {kbackup_command(*step.words, *common)}\n")


def _run(remedy: GuideRemedy, answers: GuideAnswers, common: Words) -> int:
    """Run the dry run and, if that is wanted, what mends the case. End with the commands that verify it."""
    click.echo("Now the first line runs:\n")
    code = run_kbackup((*remedy.dry_run.words, *common))
    if code == InterruptedByUserError.exit_code:
        return code
    click.echo()
    if code not in (EXIT_OK, EXIT_LOSS):
        click.echo(f"It ended with exit code {code}. Mend what it names, and run the lines above.")
        return code
    if code == EXIT_LOSS:
        click.echo(f"It ended with exit code {code}: read above what would be left out.")
    show_deleted(remedy, common)
    for step in remedy.left_out:
        click.echo(f"{step.why}:\n\n  {kbackup_command(*step.words, *common)}\n")
    run = kbackup_command(*remedy.run.words, *common)
    verify = f"Verify it before clients come back:\n\n  {kbackup_command(*remedy.verify.words, *common)}\n"
    wanted = "no"
    if is_free(remedy, answers):
        wanted = answers.answer(GuideQuestion("run", f"{remedy.question} (yes, no)", yes_or_no, "no"))
    if wanted == "no":
        click.echo(f"\nTo run it later:\n\n  {run}\n")
        click.echo(f"{verify}\nThen {remedy.then}.")
        return code
    code = run_kbackup((*remedy.run.words, *common))
    click.echo()
    if code not in (EXIT_OK, EXIT_LOSS, InterruptedByUserError.exit_code):
        click.echo(f"It ended with exit code {code}. Mend what it names, and run the same line again:\n\n  {run}\n")
    elif code == EXIT_LOSS:
        click.echo(f"It ended with exit code {code}: read above what is missing.")
    click.echo(verify)
    if code == EXIT_OK:
        click.echo(f"Then {remedy.then}.")
    return code


def show_deleted(remedy: GuideRemedy, common: Words) -> None:
    """Show which records that a group should read again are deleted in their topics, and how to restore them."""
    if remedy.group is None or remedy.target is None:
        return
    deleted = remedy.target.deleted_records(remedy.store, remedy.group, remedy.moment)
    for each in deleted:
        count = plural(each.end - each.start, "record")
        click.echo(f"{each.topic}-{each.partition}: {count} ({each.start} to {each.end - 1}) are deleted in the topic")
    if deleted and remedy.otherwise:
        click.echo(f"{remedy.unless}:\n")
        for step in remedy.otherwise:
            _show_step(step, common)


def is_free(remedy: GuideRemedy, answers: GuideAnswers) -> bool:
    """Wait until the group that is to be set has no live members. Return whether it has none: nobody waits where
    answers come from a file."""
    if remedy.group is None or remedy.target is None:
        return True
    while members := remedy.target.members(remedy.group):
        click.echo(f"group {remedy.group} can't be set yet: it has {members}")
        if not answers.wait(f"Stop the consumers of {remedy.group}, then press Enter to look again"):
            return False
    return True


# The options of the guide itself, which its commands need as well.


def _check_settings(settings: Sequence[Setting]) -> None:
    """Raise `UsageError` for options that say what to restore, and for secrets, which would be printed."""
    for setting in settings:
        if exposes_secret(setting.path, setting.value):
            raise UsageError(
                f"{setting.path} is on the command line, and the guide prints its commands",
                "write ${env:NAME} or ${file:/path}, or put it into kbackup.toml",
            )
        if setting.path.startswith("restore.") and setting.path not in _KEPT:
            raise UsageError(
                f"{setting.origin.name} is what the guide asks for", "leave it out, or restore without --guide"
            )


def _common_words(context: CommandContext, flags: FlagValues) -> Words:
    """Return the options that name the archive, the configuration and the clusters, as this run got them."""
    words = [*_backup_words(context, flags)]
    if flags.target_file is not None:
        words += ["--target-config", flags.target_file]
    return tuple(words)


def _backup_words(context: CommandContext, flags: FlagValues) -> Words:
    """Return the same options without the target's client properties, which a backup does not take."""
    words: list[str] = []
    for setting in flags.settings:
        if setting.path == "archive":
            words += ["--archive", context.archive]
        elif setting.path != "restore.restore_id":
            words += ["--set", f"{setting.path}={_as_written(setting.value)}"]
    if flags.config_file is not None:
        words += ["--config", flags.config_file]
    if flags.accept_rollback:
        words.append("--accept-rollback")
    return tuple(words)


def _as_written(value: object) -> str:
    """Return a value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
