"""The names of an archive, for a shell that completes a word."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext, FlagValues, load_config
from kbackup.cli.common.output import Reporter

if TYPE_CHECKING:
    from kbackup.archive.reader import Archive

_COMPLETION_SECONDS = 1.0


def archived(kind: str, *words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of `words`, or of the archive's "topics", "groups", "subjects", "labels" or "points"."""

    def complete(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
        candidates = words or _archived_names(kind, context)
        return [word for word in candidates if word.startswith(start)]

    return complete


def _archived_names(kind: str, context: click.Context) -> list[str]:
    """Return names of the archive of the command line or of kbackup.toml, by the cache of metadata; none after an
    error or a second. Prints nothing."""
    # A line of the log would be printed into the line that is typed.
    logging.disable(logging.CRITICAL)
    state = context.ensure_object(FlagValues)
    names: list[str] = []

    def read() -> None:
        # An error while a word is completed would be printed into the line that is typed.
        with suppress(Exception):
            from kbackup.archive.reader import open_archive
            from kbackup.cli.common.session import cached_archive_store

            loaded = load_config(state)
            if (loaded.config.encryption.key or "").startswith("command:"):
                # The program may ask for a password, in the middle of the line that is typed.
                return
            command_context = CommandContext(loaded, Reporter())
            archive = open_archive(cached_archive_store(command_context))
            names.extend(_names_in(archive, kind))

    # A thread that hangs on a store can't be stopped, but the process that completes ends without it.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_COMPLETION_SECONDS)
    return names


def _names_in(archive: Archive, kind: str) -> list[str]:
    """Return the names of an archive that complete a word: topics, groups and subjects of the newest restore point."""
    from kbackup.archive.catalog.labels import is_label

    if kind == "labels":
        return list(archive.state.labels)
    if kind == "points":
        labels = [label for label in archive.state.labels if is_label(label)]
        numbers = [str(point.number) for point in archive.restore_points]
        return [*labels, "latest", *numbers]
    head = archive.head
    if head is None:
        return []
    if kind == "topics":
        return [topic.name for topic in head.topics]
    if kind == "groups":
        return [group.group for group in archive.groups(head).groups]
    held = archive.schemas(head) if kind == "subjects" else None
    if held is None:
        return []
    return sorted({version.subject for version in held.versions})
