"""The findings of a status: each says what is wrong in words that are true, and gives a command to paste.

`critical` is worth waking somebody: records can't be restored, or soon are not backed up. Everything else is a
`warning`. infra/docs/status.md has a row for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kbackup.archive.catalog.state import PointRow
from kbackup.archive.deletions import unseen_warnings
from kbackup.archive.models import HangingTransaction, Manifest, Schemas, abort_command
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import NOT_READ, SchemaIndex, unknown_ids
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.errors import CorruptError
from kbackup.jobs.drill.report import DrillReport, deletion_commands
from kbackup.jobs.remains import Remains, deletion_sentences, lock_sentences
from kbackup.jobs.status.report import LastVerification, LeaseStatus, NewestPoint, StatusFinding, count_of_losses
from kbackup.util.text import join_names, kbackup_command, plural
from kbackup.util.times import duration_text, ms_of, rfc3339

RECENT_DAYS = 7
"""Losses and growth count the last seven days."""
_BACKUP = "kbackup backup"
_FOLLOWER = "kbackup backup --follow"
_FOLLOWERS = (_FOLLOWER, "kbackup mirror")
_SKEW = timedelta(minutes=5)
"""Clocks may differ by this much before a restore point counts as one of the future."""
_NAMED = 5
"""Things that a message names at most."""
_FEW = 2
"""Differences of a drill that a message names at most: each is a sentence."""
_LONG = 3600.0
"""Seconds after which an open transaction is a finding. Brokers end a living producer's within 15 minutes."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines to paste. Each names the archive, and ends with `options`, by which the store is found.

    `origin` is the address of the archive that this one is a copy of, or ''. `servers` are brokers of the source.
    """

    archive: str
    options: Sequence[str] = ()
    origin: str = ""
    servers: str = "HOST:PORT"

    def line(self, *words: str) -> str:
        """Return a command on the archive."""
        return kbackup_command(*words, "--archive", self.archive, *self.options)

    def renewal(self, *options: str) -> str:
        """Return the command that makes the next restore point. A copy takes no backup: it gets the next one from its
        origin."""
        if self.origin:
            return kbackup_command("copy", self.archive, "--archive", self.origin, *self.options)
        return self.line("backup", *options)


def age_findings(
    newest: NewestPoint | None, max_age: float, at: datetime, lease: LeaseStatus | None, commands: Commands
) -> Iterator[StatusFinding]:
    """Yield findings if the newest restore point is too old, of the future, or missing. While a follower holds the
    lease, the age is a warning: it makes no restore point as long as nothing is new."""
    if newest is None:
        yield StatusFinding("critical", "age", "the archive has no restore point", commands.renewal())
        return
    point = f"the newest restore point, {newest.number}"
    # A restore point of a clock that is ahead would seem fresh for as long as the clocks differ. Both times are in UTC
    # and of one form, so they compare as texts.
    if newest.committed_at > rfc3339(at + _SKEW):
        message = f"{point}, is of {newest.committed_at}, later than this machine's clock"
        yield StatusFinding("warning", "age", message, commands.line("check"))
    if newest.age_seconds <= max_age:
        return
    message = f"{point}, is {duration_text(newest.age_seconds)} old; backup.max_age is {duration_text(max_age)}"
    if lease is None or lease.state == "dead":
        yield StatusFinding("critical", "age", message, commands.renewal(*_way_of_backup(lease)))
    elif lease.command.startswith(_FOLLOWERS):
        message += f"; {lease.command} on {lease.host} runs and found nothing new, or its rounds fail: see its log"
        yield StatusFinding("warning", "age", message, commands.line("check"))
    else:
        # Another run would be refused as long as this one holds the lease.
        message += f"; {lease.command} on {lease.host} has been at work since {lease.acquired_at}: see its log"
        yield StatusFinding("critical", "age", message, commands.line("list"))


def _way_of_backup(lease: LeaseStatus | None) -> tuple[str, ...]:
    """Return the options of the backup that ended without releasing its lease."""
    if lease is not None and lease.command == _FOLLOWER:
        return ("--follow",)
    return ()


def loss_findings(losses: Sequence[str], commands: Commands) -> Iterator[StatusFinding]:
    """Yield a finding of the losses of the last days. `losses` has the kind of each."""
    if losses:
        kinds = [f"{kind}: {count:,}" for kind, count in sorted(Counter(losses).items())]
        message = (
            f"backups of the last {RECENT_DAYS} days found {count_of_losses(len(losses))} of records "
            f"({', '.join(kinds)}): no backup will have them, and more are lost until the cause is mended"
        )
        yield StatusFinding("warning", "losses", message, commands.line("info"))


def damage_findings(
    verifications: Sequence[LastVerification],
    damaged: Sequence[int],
    reports: Sequence[CorruptError],
    commands: Commands,
) -> Iterator[StatusFinding]:
    """Yield findings of damage that verifications found or that restore points list as `damaged`.

    `verifications` has the newest verification of each scope, the newest first. A full verification makes all earlier
    ones obsolete. `reports` are the errors of damaged reports of verifications and drills.
    """
    verify = commands.line("verify")
    for error in reports:
        # No restore point needs the report. What it said is not known any more.
        message = f"{error.message}; no restore point needs it, but what it reported is unknown: verify the archive"
        yield StatusFinding("warning", "damage", message, verify)
    for verification in verifications:
        mendable = verification.findings - verification.unmendable
        of = f"the {verification.scope} verification of {verification.ended_at} has"
        if mendable:
            message = (
                f"{of} {plural(mendable, 'finding')}: bring the files back from a copy, or repair the archive; then "
                "verify it again"
            )
            # Without it a repair compares sizes alone, and would find nothing to mend.
            options = ("--read-data",) if verification.need_read else ()
            yield StatusFinding("critical", "damage", message, commands.line("repair", *options))
        if verification.unmendable:
            count = plural(verification.unmendable, "finding")
            message = (
                f"{of} {count} in files of restores, drills, verifications or mirrors, which no restore point needs "
                "and no repair can mend; verify names the files: take each from another copy or delete it"
            )
            yield StatusFinding("warning", "damage", message, verify)
        if verification.scope == "full":
            break  # what the earlier ones found is among its findings, or is mended
    if damaged:
        noun = "restore point lacks" if len(damaged) == 1 else "restore points lack"
        numbers = [str(number) for number in damaged]
        named = join_names(numbers, _NAMED)
        message = (
            f"{len(damaged):,} {noun} damaged segments: {named}; a restore brings back all other records, and says "
            "what it left out"
        )
        yield StatusFinding("warning", "damage", message, commands.line("list"))


@dataclass(frozen=True, slots=True)
class DrillHistory:
    """The newest drills. `newest` is the last one, `conclusive` the last one that compared what it restored.

    `read` counts the reports that were read to find `conclusive`, the newest first; without one, `oldest_age` is the
    age in seconds of the oldest of them. `damaged` are the errors of reports that can't be read. `url` is the address
    of the folder that holds the reports.
    """

    url: str
    newest: DrillReport | None = None
    conclusive: DrillReport | None = None
    conclusive_age: float = 0.0
    read: int = 0
    oldest_age: float = 0.0
    damaged: tuple[CorruptError, ...] = ()


def drill_findings(history: DrillHistory, max_drill_age: float, commands: Commands) -> Iterator[StatusFinding]:
    """Yield findings of the last drill that compared records, and of a later one that could not run.

    Only a difference makes the archive doubtful. An archive that never had a drill is no finding. A drill that was
    interrupted is none either, but it takes the place of no other.
    """
    newest, conclusive = history.newest, history.conclusive
    if conclusive is not None:
        yield from _conclusive_findings(history, conclusive, commands)
    if newest is not None and newest.outcome == "could not run":
        # With the hint of its error: it says what to change before the next drill.
        message = f"drill {newest.drill_id} could not run, so it says nothing about the archive: {newest.obstacle}"
        yield StatusFinding("warning", "drill", message, commands.line("drill"))
    if conclusive is None or conclusive.outcome != "failed":
        # A drill that failed calls for another one, whatever its age.
        yield from _drill_age_findings(history, max_drill_age, commands)


def _conclusive_findings(history: DrillHistory, drill: DrillReport, commands: Commands) -> Iterator[StatusFinding]:
    if drill.outcome == "passed":
        return
    # The gravest first, and only one: what was damaged explains the differences as well.
    name = f"drill {drill.drill_id}"
    point = f"restore point {drill.restore_point}" if drill.restore_point else "the archive"
    page = f"its report: {history.url}/{drill.drill_id}/"
    if drill.is_damage:
        message = f"{name} met damage, so {point} may not be restorable: {drill.obstacle}; {page}"
        yield StatusFinding("critical", "drill", message, commands.line("verify"))
    elif drill.differences:
        differences = join_names(drill.differences, _FEW, "; ")
        message = (
            f"{name} found differences, so {point} may not be restorable: {differences}; {page}; see whether the "
            "archive is whole, then drill again"
        )
        yield StatusFinding("critical", "drill", message, commands.line("verify"))
    elif drill.lost:
        places = plural(len(drill.lost), "place")
        message = (
            f"{name} brought back all that {point} has; in {places} it lacks records that were found damaged; {page}"
        )
        yield StatusFinding("warning", "drill", message, commands.line("list"))
    else:
        shortfalls = join_names(drill.shortfalls, _FEW, "; ")
        message = f"{name} found no difference in what it compared, but the target: {shortfalls}; {page}"
        deletions = deletion_commands(drill) if drill.left else []
        command = deletions[0] if deletions else commands.line("drill")
        yield StatusFinding("warning", "drill", message, command)


def _drill_age_findings(history: DrillHistory, max_drill_age: float, commands: Commands) -> Iterator[StatusFinding]:
    limit = f"backup.max_drill_age is {duration_text(max_drill_age)}"
    conclusive = history.conclusive
    message = ""
    if conclusive is not None and history.conclusive_age > max_drill_age:
        age = duration_text(history.conclusive_age)
        message = f"the newest drill that compared records, {conclusive.drill_id}, is {age} old; {limit}"
    elif conclusive is None and history.oldest_age > max_drill_age:
        age = duration_text(history.oldest_age)
        message = f"none of the last {history.read} drills compared records; the first of them is {age} old; {limit}"
    if message:
        yield StatusFinding("warning", "drill", message, commands.line("drill"))


def lease_findings(lease: LeaseStatus | None, commands: Commands) -> Iterator[StatusFinding]:
    """Yield a finding of a writer that ended without releasing its lease."""
    if lease is None or lease.state == "alive":
        return
    message = (
        f"{lease.command} on {lease.host} (pid {lease.pid}) began at {lease.acquired_at} and was killed: it released "
        "no lease. Nothing is damaged, and the next run takes over what is whole; find out who killed it"
    )
    command = commands.line("unlock")
    if lease.command in (_BACKUP, _FOLLOWER):
        command = commands.renewal(*_way_of_backup(lease))
    yield StatusFinding("warning", "lease", message, command)


def erasure_findings(erased: int, remains: Remains, deleted_from: str, commands: Commands) -> Iterator[StatusFinding]:
    """Yield a finding while objects, or versions of deleted ones, are there that still have erased records. `erased`
    counts the records that were ever erased. Objects can be deleted from `deleted_from` on."""
    message = f"{plural(erased, 'record')} of the archive were erased, and "
    if remains.objects:
        message += f"{plural(remains.objects, 'object')} that no reader looks into any more still have some of them: "
        deletion = f"expire deletes them from {deleted_from} on"
        clauses = [deletion, *lock_sentences(remains), *deletion_sentences(remains)]
        yield StatusFinding("warning", "erasure", message + "; ".join(clauses), commands.line("expire", "--confirm"))
    elif remains.versions:
        message += f"{plural(remains.versions, 'version')} of deleted objects still have some of them: "
        clauses = ["delete them, or let a rule of the bucket do it", *lock_sentences(remains)]
        yield StatusFinding("warning", "erasure", message + "; ".join(clauses), commands.line("log"))


def point_findings(archive: Archive, last: PointRow, allow_loss: bool, commands: Commands) -> Iterator[StatusFinding]:
    """Yield findings of the newest restore point: schemas that it could not get, records whose schema nobody has,
    deletions that compaction may have removed unseen, transactions that are open for long, and damaged documents."""
    try:
        newest = archive.manifest(last)
        schemas = archive.schemas(newest)
    except CorruptError as error:
        message = f"restore point {last.number}, the newest, is damaged: {error.message}"
        yield StatusFinding("critical", "damage", message, commands.line("verify"))
        return
    for warning in newest.warnings:
        # Manifests have warnings as texts alone: this one is known by how it begins.
        if warning.startswith(NOT_READ):
            yield StatusFinding("warning", "schemas", warning, commands.line("check"))
    if schemas is not None:  # without a registry in the configuration nobody asked for schemas
        yield from _schema_findings(newest, schemas, commands)
    if not allow_loss:
        for warning in unseen_warnings(newest.topics):
            yield StatusFinding("warning", "deletions", warning, commands.line("backup", "--recheck-compacted"))
    if newest.transactions is not None:
        yield from _transaction_findings(newest.committed_at, newest.transactions.open, commands)


def _schema_findings(newest: Manifest, schemas: Schemas, commands: Commands) -> Iterator[StatusFinding]:
    """Yield findings of records whose schemas the registry does not have, or does not cover."""
    unknown = unknown_ids(newest.topics, SchemaIndex(schemas))
    show = commands.line("schemas", "show")
    if unknown:
        names = [f"{each.id} in {each.part}s of {each.topic}" for each in unknown]
        message = f"records carry schemas that the registry does not have: {join_names(names, _NAMED)}"
        yield StatusFinding("warning", "schemas", message, show)
    for message in uncovered(newest.topics, schemas):
        yield StatusFinding("warning", "schemas", message, show)


def _transaction_findings(
    committed_at: str, transactions: Iterable[HangingTransaction], commands: Commands
) -> Iterator[StatusFinding]:
    """Yield a finding for each transaction that was open for long when the restore point was committed."""
    # By the time of the restore point, not by now: the transaction may have ended since.
    for transaction in transactions:
        seconds = (ms_of(committed_at) - transaction.timestamp) / 1000
        if seconds < _LONG or transaction.producer_id < 0:
            continue  # without the producer's id nobody can abort it
        where = f"{transaction.topic}-{transaction.partition}"
        message = (
            f"producer {transaction.producer_id} had a transaction open in {where} for {duration_text(seconds)} when "
            "the newest restore point was taken; consumers wait behind it; if its application is gone, abort it"
        )
        command = abort_command(transaction, commands.servers)
        yield StatusFinding("warning", "transactions", message, command)
