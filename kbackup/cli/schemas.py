"""`kbackup schemas`: show, compare, export, restore and undo what a restore point has of a schema registry."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click
import msgspec

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import undo_command
from kbackup.cli.common.completion import archived
from kbackup.cli.common.options import (
    archive_command,
    common_options,
    key_option,
    options,
    point_option,
    to_time_option,
)
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store, state_store
from kbackup.cli.common.tables import Cell, Column
from kbackup.cli.common.undo import named_restore, show_unconfirmed, undo_options
from kbackup.cli.groups import InOrder, chosen_moment
from kbackup.config.times import TIMES
from kbackup.errors import EXIT_LOSS, EXIT_OK, KbackupError, UsageError, suggest_name
from kbackup.util.folders import Folder
from kbackup.util.text import join_names, plural
from kbackup.util.times import now

if TYPE_CHECKING:
    from kbackup.archive.models import Manifest, Schemas
    from kbackup.jobs.diff import SchemasDiff
    from kbackup.jobs.schemas.documents import RestoredSchema, SchemaMap
    from kbackup.jobs.schemas.plan import PlannedSchema, SchemaPlan, SubjectOverview
    from kbackup.jobs.schemas.undo import SchemasUndone
    from kbackup.schemas.base import SchemaVersion, SubjectSettings


@click.group("schemas", cls=InOrder, epilog="Example: kbackup schemas show")
@common_options
def command() -> None:
    """Show, compare, export, restore and undo schemas of a registry."""


_moment_options = options(
    point_option("Schemas as of this restore point."), to_time_option(f"Schemas as of this time: {TIMES}.")
)
_target_options = options(
    key_option("target_schema_registry.url", "--target-schema-registry"),
    key_option("target_schema_registry.ca_bundle", "--target-schema-registry-ca"),
)


class _Point(NamedTuple):
    """A restore point with its schemas. `head` is what the document of each command begins with."""

    manifest: Manifest
    schemas: Schemas
    head: dict[str, Any]


def _point(context: CommandContext, restore_point: str | None, to_time: str | None = None) -> _Point:
    """Return a restore point with its schemas. Raises `UsageError` if it has none."""
    from kbackup.archive.reader import open_archive

    archive = open_archive(archive_store(context))
    manifest = chosen_moment(context.reporter, restore_point, to_time).of(archive)
    schemas = archive.schemas(manifest)
    if schemas is None:
        raise UsageError(
            f"restore point {manifest.number} has no schemas",
            "set schema_registry.url for backups, or select another one with --restore-point",
        )
    head = {
        "archive": archive.store.url,
        "restore_point": manifest.number,
        "registry": schemas.registry,
        "captured_at": schemas.captured_at,
        "kept": schemas.kept,
    }
    return _Point(manifest, schemas, head)


# Show.


def _few(names: Iterable[object]) -> str | None:
    """Return the first four of some names or numbers, and how many more there are; None if there are none."""
    texts = [str(name) for name in names]
    return join_names(texts, 4) or None


_SUBJECTS: Sequence[Column[SubjectOverview]] = (
    Column("subject", "subject"),
    Column("type", "type", importance=2),
    Column("versions", "versions", len, importance=3),
    Column("ids", "ids", _few, importance=3),
    Column("deleted", "deleted", importance=1, optional=True),
    Column("topics", "topics", _few, importance=4),
)
"""The columns of `kbackup schemas show`."""


@archive_command(
    "show",
    click.argument("subject", required=False, shell_complete=archived("subjects")),
    _moment_options,
    group=command,
    example="kbackup schemas show orders-value",
)
def show(context: CommandContext, subject: str | None, restore_point: str | None, to_time: str | None) -> None:
    """Show the subjects of a restore point; with SUBJECT, its versions, schemas and settings.

    Needs no registry. Topics are those whose records carry an id of the subject.
    """
    from kbackup.archive.schemas import SchemaIndex
    from kbackup.archive.uncovered_schemas import uncovered
    from kbackup.jobs.schemas.plan import ids_of_records, subjects_of

    reporter = context.reporter
    point = _point(context, restore_point, to_time)
    found = subjects_of(point.schemas, point.manifest.topics)
    head: list[tuple[str, Cell]] = []
    for name, value in point.head.items():
        head.append((name.replace("_", " "), value))
    if subject is None:
        reporter.fields(head)
        reporter.line()
        reporter.table(_SUBJECTS, found)
        _, lost = ids_of_records(point.manifest.topics, SchemaIndex(point.schemas))
        not_mapped = uncovered(point.manifest.topics, point.schemas)
        reporter.warning(*lost, *not_mapped)
        reporter.document(point.head | {"subjects": found, "lost": lost, "uncovered": not_mapped})
        return
    topics = {each.subject: each.topics for each in found}
    if subject not in topics:
        hint = suggest_name(subject, topics, "run 'kbackup schemas show' to list them")
        raise UsageError(f"there is no subject {subject} in restore point {point.manifest.number}", hint)
    versions = [version for version in point.schemas.versions if version.subject == subject]
    settings = _settings_of(subject, point.schemas)
    reporter.fields([*head, ("subject", subject), ("topics", _few(topics[subject]))])
    reporter.fields(_setting_fields(settings))
    for version in versions:
        show_version(version, reporter)
    of_subject = {"subject": subject, "topics": topics[subject], "settings": settings, "versions": versions}
    reporter.document(point.head | of_subject)


def _settings_of(subject: str, schemas: Schemas) -> SubjectSettings:
    """Return the settings of a subject, which are empty if it has none of its own."""
    from kbackup.schemas.base import SubjectSettings

    for settings in schemas.settings:
        if settings.subject == subject:
            return settings
    return SubjectSettings(subject=subject)


def _setting_fields(settings: SubjectSettings) -> list[tuple[str, Cell]]:
    values = {**(settings.config or {}), "mode": settings.mode}
    return [(name, str(value)) for name, value in values.items() if value is not None]


def show_version(version: SchemaVersion, reporter: Reporter) -> None:
    reporter.line()
    facts = [f"version {version.version}", f"id {version.id}", version.type, version.state]
    if version.guid:
        facts.append(version.guid)
    reporter.line(", ".join(facts))
    for reference in version.references:
        reporter.line(f"  {reference.name} is {reference.subject} version {reference.version}")
    text = version.schema
    if version.type != "PROTOBUF":
        # Avro and JSON Schema are JSON; a text that is not, or is too deep, is shown as it is.
        with suppress(msgspec.DecodeError, RecursionError):
            text = msgspec.json.format(text, indent=2)
    for line in text.splitlines():
        reporter.line(f"  {line.expandtabs(4)}")


# Compare.


@archive_command(
    "diff",
    click.argument("a", metavar="[A]", default="latest"),
    click.argument("b", metavar="[B]", default="source"),
    key_option("schema_registry.url", "--schema-registry", help="URL of the source's schema registry."),
    _target_options,
    click.option("--exit-code", is_flag=True, help="End with exit code 3 if there are differences."),
    group=command,
    example="kbackup schemas diff 41 target",
)
def diff(context: CommandContext, a: str, b: str, exit_code: bool) -> int:
    """Show how the schemas of B differ from those of A.

    A and B are restore points (number, label or latest), or the registry of the source or target: source is
    schema_registry.url, target is target_schema_registry.url. [default latest, source] A registry's other subjects are
    left out if a restore point kept only those that its records use.
    """
    from kbackup.jobs.backup.schemas import capture_schemas
    from kbackup.jobs.diff import diff_schemas
    from kbackup.jobs.schemas.plan import open_registry

    def schemas(name: str) -> Schemas:
        if name not in ("source", "target"):
            return _point(context, name).schemas
        section = "schema_registry" if name == "source" else "target_schema_registry"
        registry = open_registry(context.config.section(section), section)
        return capture_schemas(registry, (), None, "all")

    def name_of(side: str) -> str:
        return f"{side} registry" if side in ("source", "target") else f"restore point {side}"

    differences = diff_schemas(name_of(a), name_of(b), schemas(a), schemas(b))
    show_diff(differences, context.reporter)
    context.reporter.document(differences)
    return EXIT_LOSS if exit_code and not differences.same else EXIT_OK


def show_diff(diff: SchemasDiff, reporter: Reporter) -> None:
    from kbackup.cli.diff import value_columns

    reporter.note(f"from {diff.a} to {diff.b}")
    if diff.schemas:
        reporter.table(value_columns("subject", "name"), diff.schemas)
        reporter.line()
    if diff.other_subjects:
        reporter.note(f"not compared: {plural(diff.other_subjects, 'subject')} that no record of a restore point used")
    count = plural(len(diff.schemas), "difference")
    reporter.line("there are no differences" if diff.same else count)


# Export.


@archive_command(
    "export",
    click.argument("directory", type=click.Path(path_type=Path)),
    _moment_options,
    group=command,
    example="kbackup schemas export ./schemas",
)
def export(context: CommandContext, directory: Path, restore_point: str | None, to_time: str | None) -> None:
    """Write each version of each subject into a file of DIRECTORY, which must be empty or new.

    Files are SUBJECT/v1.avsc, .proto or .json; signs that a file's name can't have are written as in URLs. Also writes
    schemas.json, with ids, references and settings.
    """
    from kbackup.archive.models import dump

    point = _point(context, restore_point, to_time)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Files of another export would look like schemas of this restore point.
        if any(directory.iterdir()):
            raise UsageError(f"directory {directory} is not empty", "name a new one")
        with Folder.at(directory) as folder:
            for path, data in export_files(point.schemas):
                subject, name = path.split("/")
                # The folder is there if the subject has several versions.
                with suppress(FileExistsError):
                    folder.mkdir(subject, 0o777)
                with folder.folder(subject) as of_subject:
                    _write_new(of_subject, name, data)
            _write_new(folder, "schemas.json", dump(point.schemas))
    except OSError as error:
        raise KbackupError(f"the schemas can't be written: {error}", "check the directory and its disk") from error
    count = len(point.schemas.versions)
    context.reporter.line(f"{plural(count, 'version')} of restore point {point.manifest.number} in {directory}")
    context.reporter.document(point.head | {"directory": str(directory), "versions": count})


def _write_new(folder: Folder, name: str, data: bytes) -> None:
    with os.fdopen(folder.create(name, 0o666), "wb") as file:
        file.write(data)


def export_files(schemas: Schemas) -> Iterator[tuple[str, bytes]]:
    """Yield a relative path of two plain names, and the text, of each version."""
    folders: dict[str, str] = {}
    used = {"schemas.json"}
    for version in schemas.versions:
        subject = version.subject
        if subject not in folders:
            folders[subject] = _folder_name(subject, used)
            used.add(folders[subject].lower())
        kind = _FILE_KINDS.get(version.type, "txt")
        # A version that was deleted may have the number of a later one: the id tells them apart.
        gone = f"-id{version.id}" if version.state == "gone" else ""
        yield f"{folders[subject]}/v{version.version}{gone}.{kind}", version.schema.encode()


def _folder_name(subject: str, used: Collection[str]) -> str:
    """Return the name of a subject's folder. `used` are the names of other folders, in lower case."""
    name = quote(subject, safe=" ,;@=+")
    if name.startswith("."):
        # The name could be "." or "..", or be hidden.
        name = f"%2E{name[1:]}"
    elif not name:
        name = "%"
    # File systems have names of up to 255 bytes, and may not tell upper case from lower case.
    if len(name) > 150 or name.lower() in used:
        digest = hashlib.sha256(subject.encode()).hexdigest()
        name = f"{name[:150]}-{digest[:16]}"
    return name


_FILE_KINDS = {"AVRO": "avsc", "PROTOBUF": "proto", "JSON": "json"}


# Restore and undo.


@archive_command(
    "restore",
    click.argument("subjects", nargs=-1, metavar="[SUBJECT]...", shell_complete=archived("subjects")),
    _moment_options,
    _target_options,
    key_option("restore.schemas", help="Keep ids and versions (same), or let the registry give new ones (map)."),
    key_option("restore.subject_prefix"),
    click.option("--dry-run", is_flag=True, help="Show the plan and all that would stop it; write nothing."),
    key_option("restore.restore_id"),
    key_option("restore.state"),
    group=command,
    example="kbackup schemas restore orders-value --dry-run",
)
def restore(
    context: CommandContext, subjects: tuple[str, ...], restore_point: str | None, to_time: str | None, dry_run: bool
) -> int:
    """Register schemas of a restore point in the target registry, with all that they refer to.

    SUBJECT is a name or a /regex/. [default: all] Ends with exit code 3 when a setting could not be set, or a version
    not be deleted again. No record is written: 'kbackup restore --schemas map' writes new ids into the records.
    """
    from kbackup.archive.query.selection import Selection, check_selection
    from kbackup.archive.restores.journal import RestoreJournal
    from kbackup.archive.schemas import SchemaIndex
    from kbackup.jobs.schemas.plan import carried_versions, open_registry, prepare_schemas
    from kbackup.jobs.schemas.write import apply_schemas

    given = context.config.restore
    if given.schemas == "none":
        raise UsageError("--schemas none restores nothing", "give same or map")
    registry = open_registry(context.config.target_schema_registry)
    point = _point(context, restore_point, to_time)
    selection = Selection.of(subjects, ())
    names = {version.subject for version in point.schemas.versions}
    where = f"in restore point {point.manifest.number}"
    check_selection(selection, "subject", names, where, "see 'kbackup schemas show'")
    carried = carried_versions(point.manifest.topics, SchemaIndex(point.schemas))
    mode = given.schemas or "same"
    plan = prepare_schemas(
        registry, point.schemas, carried=carried, mode=mode, prefix=given.subject_prefix, subjects=selection
    )
    if dry_run:
        show_plan(plan, context.reporter)
        context.reporter.document(plan)
        # The plan is shown first: its problems are an error, which ends the command.
        plan.check()
        return EXIT_OK
    restore_id = given.restore_id or f"{now()[:10]}-{uuid.uuid4().hex[:8]}"
    if not plan.problems:
        # Whoever interrupts the command needs the id to undo it.
        context.reporter.note(f"restore {restore_id}")
    journal = RestoreJournal(state_store(context), restore_id)
    done = apply_schemas(registry, journal, plan)
    words = ("schemas", "undo", "--restore-id", done.restore_id)
    undo = undo_command(context.config, *words, clusters=("target_schema_registry",))
    show_restored(done, plan, undo, context.reporter)
    context.reporter.document(done)
    return EXIT_LOSS if done.not_set else EXIT_OK


_STEPS: Sequence[Column[PlannedSchema]] = (
    Column("subject", "source", importance=1),
    Column("becomes", "schema.subject"),
    Column("version", "schema.version", importance=4),
    Column("id", "schema.id", importance=3),
    Column("type", "schema.type", importance=2),
    Column("state", "schema.state", importance=1),
    Column("action", "action"),
)
"""The columns of the plan of a restore of schemas."""


def show_plan(plan: SchemaPlan, reporter: Reporter) -> None:
    from kbackup.jobs.schemas.plan import settings_words

    reporter.table(_STEPS, plan.steps)
    for settings in plan.after:
        whose = settings.subject or "all subjects"
        reporter.note(f"to set: {settings_words(settings)} of {whose}")
    reporter.note(*plan.notes)
    reporter.line(f"nothing was written; {plural(len(plan.created), 'version')} to create")


def show_restored(done: SchemaMap, plan: SchemaPlan, undo: str, reporter: Reporter) -> None:
    """Show which schemas are in the target's registry now. `undo` is the command that deletes the new ones."""
    steps = {(step.source, step.schema.version): step for step in plan.steps}

    def old_id(restored: RestoredSchema) -> int:
        return steps[restored.source, restored.version].schema.id

    def action(restored: RestoredSchema) -> str:
        return steps[restored.source, restored.version].action

    restored_columns: Sequence[Column[RestoredSchema]] = (
        Column("subject", "source"),
        Column("becomes", "subject", importance=1),
        Column("version", "version", importance=3),
        Column("new version", "target_version", importance=2),
        Column("id", old_id, importance=4),
        Column("new id", "id"),
        Column("action", action, importance=1),
    )
    reporter.table(restored_columns, done.schemas)
    reporter.note(*plan.notes)
    reporter.warning(*done.not_set)
    reporter.line(f"{plural(len(done.schemas), 'version')} in {done.registry}")
    reporter.note(f"to undo: {undo}")


@archive_command(
    "undo",
    _target_options,
    key_option("restore.restore_id", help="Restore that wrote the schemas, by the id that it printed."),
    key_option("restore.state"),
    undo_options,
    group=command,
    example="kbackup schemas undo --restore-id worst-day --confirm",
)
def undo(context: CommandContext, confirm: bool, accept_unproven: bool) -> int:
    """Delete the schemas that a restore created, and put the registry's settings back.

    Without --confirm, only show the plan. Leaves what others have changed since, or refer to. Ends with exit code 3
    when something is left.
    """
    from kbackup.archive.restores.journal import RestoreJournal
    from kbackup.jobs.schemas.plan import open_registry
    from kbackup.jobs.schemas.undo import SchemasUndo

    restore_id = named_restore(context)
    registry = open_registry(context.config.target_schema_registry)
    journal = RestoreJournal(state_store(context), restore_id)
    undone = journal.undo(SchemasUndo(registry, journal), confirm=confirm, accept_unproven=accept_unproven)
    show_undone(undone, context.reporter)
    context.reporter.document(undone)
    return EXIT_LOSS if undone.left else EXIT_OK


def show_undone(undone: SchemasUndone, reporter: Reporter) -> None:
    would = "" if undone.confirmed else "would be "
    for name in undone.deleted:
        reporter.line(f"{name}: {would}deleted")
    for name in undone.settings:
        reporter.line(f"settings of {name}: {would}put back")
    reporter.warning(*undone.left)
    reporter.line(f"{plural(len(undone.deleted), 'version')} {would}deleted from {undone.registry}")
    if not undone.confirmed:
        show_unconfirmed(undone.unproven, reporter)
