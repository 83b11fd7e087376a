"""`kbackup key`: generate, list and rotate keys of encrypted archives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, when_interrupted
from kbackup.cli.common.options import archive_command, common_options
from kbackup.cli.common.session import archive_store
from kbackup.cli.common.tables import Column
from kbackup.errors import EXIT_LOSS, EXIT_OK, CorruptError, UsageError
from kbackup.store.crypt.kek import check_source, generate_key, load_kek
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.jobs.keys import HeldKeys


@click.group("key", epilog="Example: kbackup key generate /etc/kbackup/archive.key")
@common_options
def command() -> None:
    """Generate, list and rotate keys of encrypted archives."""


@command.command("generate", epilog="Example: kbackup key generate /etc/kbackup/archive.key")
@click.argument("file", type=click.Path(path_type=Path))
@common_options
@pass_command_context
def generate(context: CommandContext, file: Path) -> None:
    """Write a new key to FILE, which only its owner may read. Keep a copy: without it the archive is lost."""
    # An existing file is never replaced: it may hold a key that an archive needs.
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{file}: {reason}", "name a file that does not exist yet") from error
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(generate_key() + "\n")
        out.flush()
        # Whoever goes on to encrypt an archive by this key must not lose it with the power.
        os.fsync(out.fileno())
    name = load_kek(f"file:{file}").name
    context.reporter.line(f'key {name} is in {file}: set encryption.key = "file:{file.absolute()}"')
    context.reporter.document({"file": str(file), "key": name})


def _opens(held: HeldKeys) -> str:
    return "yes" if held.ours else "no"


_KEY_FILES: Sequence[Column[HeldKeys]] = (
    Column("file", "file"),
    Column("created at", "created_at", importance=1),
    Column("under key", "kek", importance=4),
    Column("data keys", "keys", importance=2),
    Column("opens", _opens),
)
"""The columns of `kbackup key list`."""


@archive_command("list", argument=True, group=command, example="kbackup key list")
def show(context: CommandContext) -> int:
    """List an archive's files of data keys, and whether the given key opens them.

    Ends with exit code 13 when two files hold different data keys under one id.
    """
    from kbackup.jobs.keys import held_keys

    store = archive_store(context)
    files, skipped, conflicts = held_keys(store)
    for each in skipped:
        context.reporter.warning(str(each))
    for conflict in conflicts:
        context.reporter.warning(f"{conflict.message}: {conflict.hint}")
    context.reporter.table(_KEY_FILES, files)
    paths = [each.path for each in skipped]
    messages = [conflict.message for conflict in conflicts]
    context.reporter.document({"archive": store.url, "files": files, "skipped": paths, "conflicts": messages})
    return CorruptError.exit_code if conflicts else EXIT_OK


@archive_command(
    "rotate",
    click.option(
        "--to", "new", required=True, metavar="KEY", help="New key: file:/path, env:NAME or command:program arguments."
    ),
    argument=True,
    group=command,
    example="kbackup key rotate --to file:/etc/kbackup/new.key",
)
def rotate(context: CommandContext, new: str) -> int:
    """Encrypt an archive's data keys with a new key; segments stay as they are.

    Needs the archive's lease and does not wait for other writers. After a crash run it again. Ends with exit code 3
    when a file of the old key could not be deleted.
    """
    from kbackup.jobs.keys import rotate_keys

    check_source(new)
    again = own_command()
    when_interrupted(interrupted_rotation(again))
    store = archive_store(context)
    done = rotate_keys(store, new, context.config.backup.lease_seconds)
    for each in done.skipped:
        context.reporter.warning(str(each))
    for failed in done.undeleted:
        context.reporter.warning(
            f"{failed.key} is still under the old key: {failed.error.message}; delete it with a user that may"
        )
    context.reporter.line(
        f"{plural(done.keys, 'data key')} of {store.url} under key {done.kek} now, in {done.file}; "
        f"{plural(len(done.removed), 'file')} removed"
    )
    left = [failed.key for failed in done.undeleted]
    skipped = [each.path for each in done.skipped]
    context.reporter.document(
        {
            "archive": store.url,
            "key": done.kek,
            "data_keys": done.keys,
            "file": done.file,
            "removed": done.removed,
            "left": left,
            "skipped": skipped,
        }
    )
    return EXIT_LOSS if done.undeleted else EXIT_OK


def interrupted_rotation(again: str) -> SameState:
    """Describe an interrupted rotation. `again` is its own command."""
    state = "the data keys are under the old key, the new one or both, and none is lost: keep both keys"
    return SameState(state, f"to finish, with the old key still in encryption.key: {again}")
