"""`kbackup erase`: erase records from an archive, in every restore point."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.archive.query.selection import Selection
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, StateByPhase, when_interrupted
from kbackup.cli.common.options import archive_command
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.cli.common.tables import Column, with_incarnation
from kbackup.errors import KbackupError, UsageError
from kbackup.util.text import human_size, human_total, join_names, plural

if TYPE_CHECKING:
    from kbackup.archive.query.find import Matches
    from kbackup.jobs.decoding import DecoderOf
    from kbackup.jobs.erase import ErasedTopic, EraseReport, TopicInSource

_STDIN = "-"
_NAMED = 10
"""Topics that a note names."""
Check = Callable[[], None]
"""Raises `UsageError` after a search in which some records could not be tested."""


@archive_command(
    "erase",
    click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Topic, or a /regex/. [repeatable]"),
    click.option("--key", "texts", multiple=True, metavar="TEXT", help="Key of the records, as UTF-8. [repeatable]"),
    click.option("--key-hex", "hexes", multiple=True, metavar="HEX", help="Key in hexadecimal digits. [repeatable]"),
    click.option(
        "--key-file",
        "key_file",
        metavar="FILE",
        help="File with a key on each line, as UTF-8; - is stdin. Keys in it stand in no list of processes.",
    ),
    click.option(
        "--key-json",
        "jsons",
        multiple=True,
        metavar="JSON",
        help="Key as JSON, of topics whose keys the archived schemas decode. [repeatable]",
    ),
    click.option("--jq", "expression", metavar="EXPR", help="Records for which the jq expression EXPR is true."),
    click.option("--reason", metavar="TEXT", help="Reason for 'kbackup log'. Write no names into it."),
    click.option("--confirm", is_flag=True, help="Erase. Without it, the command only shows what it found."),
    argument=True,
    spark=True,
    example="kbackup erase --topic customers --key 4711 --confirm",
)
def command(
    context: CommandContext,
    topics: tuple[str, ...],
    texts: tuple[str, ...],
    hexes: tuple[str, ...],
    key_file: str | None,
    jsons: tuple[str, ...],
    expression: str | None,
    reason: str | None,
    confirm: bool,
) -> None:
    """Erase records from all restore points of an archive. Without --confirm, only show which.

    Looks through every segment of the topics, also of topics that were deleted and created again, and writes the
    segments that have such records anew without them. From its commit on no restore, export, page or other reader
    finds them. The old objects stay for the grace time of 'kbackup expire', which then deletes them.

    Keys are compared as bytes, those of --key-json as the JSON that archived schemas decode them to. --jq tests whole
    records so, as 'kbackup find --jq' does. The archive notes the offsets that were erased, how many, when and the
    reason: never a key. Nobody can undo it.

    Erases nothing in the source, in copies (run 'kbackup copy' again), in exports and in mirrored clusters.
    """
    from kbackup.jobs.erase import Erasure, count_erasure, erase
    from kbackup.jobs.key_matching import KeyMatch

    if not topics:
        raise UsageError("no topic is given", "name the topics with --topic, or all of them with --topic '/.*/'")
    keys = _keys(texts, hexes, key_file)
    is_by_key = bool(keys or jsons)
    if is_by_key == (expression is not None):
        raise UsageError(
            "give either keys or an expression", "use --key, --key-hex, --key-file and --key-json, or --jq without them"
        )
    if reason is not None and "\n" in reason:
        raise UsageError("--reason has several lines", "write one line")
    again = own_command("--confirm")
    shown = ShownProgress(context.reporter)
    when_interrupted(_interruption(shown, confirm, own_command()))
    store = archive_store(context)
    # What decodes records counts those that it can't decode, in this process.
    is_here = True
    if expression is not None:
        matches, check = _by_expression(context, expression)
    elif jsons:
        matches, check = _by_json(context, jsons, keys)
    else:
        matches, check = KeyMatch(keys), _no_check
        is_here = False
    erasure = Erasure(Selection.of(topics, ()), matches, reason or "", check)
    with spark_session(context.config, reporter=context.reporter) as session, shown:
        spark = None if is_here else session
        report = erase(store, erasure, context.config.backup.lease_seconds, shown, confirm=confirm, spark=spark)
    count_erasure(report)
    servers = context.config.source.get("bootstrap.servers") or "HOST:PORT"
    _show(report, again, servers, context.reporter)
    context.reporter.document(report)


def _keys(texts: Sequence[str], hexes: Sequence[str], key_file: str | None) -> list[bytes]:
    """Return the keys as bytes, in the order in which they were given."""
    keys = [text.encode() for text in texts]
    for digits in hexes:
        try:
            keys.append(bytes.fromhex(digits))
        except ValueError:
            raise UsageError(
                f"--key-hex {digits} is not hexadecimal", "give two digits for each byte, as in 34373131"
            ) from None
    if key_file is not None:
        data = _read(key_file)
        lines = data.split(b"\n")
        keys += [line.removesuffix(b"\r") for line in lines if line.strip()]
    return keys


def _read(key_file: str) -> bytes:
    """Return the bytes of a file of keys, or of stdin."""
    if key_file == _STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(key_file).read_bytes()
    except OSError as error:
        raise UsageError(
            f"--key-file {key_file} can't be read: {error.strerror}", "give a file that is there"
        ) from None


def _no_check() -> None:
    """Pass: keys can be compared as bytes in any case."""


def _by_expression(context: CommandContext, text: str) -> tuple[Matches, Check]:
    """Return what selects records by an expression, and the check that it failed for none."""
    from kbackup.cli.common.records import report_undecoded
    from kbackup.jobs.decoding import Decoding, Expression

    decoding = Decoding({}, by_topic=_archived_decoders(context))
    expression = Expression(text, decoding)

    def check() -> None:
        # One that can't be decoded is tested as text or bytes: an expression for any value may pass it over.
        report_undecoded(decoding, context.reporter)
        if expression.failed:
            raise UsageError(
                f"--jq fails for {plural(expression.failed, 'record')}, the first: {expression.first}; "
                "nothing was erased",
                "write it for any value, as in '(.value | type) == \"object\" and .value.id == 7'",
            )

    return expression, check


def _by_json(context: CommandContext, jsons: Sequence[str], keys: Sequence[bytes]) -> tuple[Matches, Check]:
    """Return what selects records whose key is one of `jsons` or of `keys`, and the check that all can be compared."""
    from kbackup.jobs.key_matching import JsonKeyMatch, KeyMatch

    matches = JsonKeyMatch(jsons, _archived_decoders(context), KeyMatch(keys))

    def check() -> None:
        if matches.failed:
            raise UsageError(
                f"the keys of {plural(matches.failed, 'record')} can't be compared with JSON, the first: "
                f"{matches.first}; nothing was erased",
                "select topics without such keys, or give bytes by --key-hex, or test '.key' by --jq",
            )

    return matches, check


def _archived_decoders(context: CommandContext) -> DecoderOf:
    """Return what decodes records by the schemas of the newest restore point."""
    from kbackup.cli.common.records import open_archive_at
    from kbackup.library.reading import topic_decoders_of

    def unavailable(error: KbackupError) -> None:
        # A record that can't be decoded might be one of those to erase.
        raise error

    opened = open_archive_at(context, "latest", None, None)
    archived = topic_decoders_of(opened.reader, unavailable)
    return _undecoded if archived is None else archived.decoder


def _undecoded(topic: str, part: str) -> None:
    """Return no decoder: the archive has no schemas."""


def _interruption(shown: ShownProgress, confirm: bool, again: str) -> StateByPhase | SameState:
    """Describe an interrupted erasure: it changes the archive by one commit."""
    nothing = ("nothing was erased", f"to begin anew: {again}")
    if not confirm:
        return SameState(*nothing)
    unknown = ("whether the records are erased shows 'kbackup log'", f"if they are not: {again}")
    return StateByPhase(shown, {"commit": unknown}, nothing)


def _points(topic: ErasedTopic) -> str:
    if topic.first_point == topic.last_point:
        return str(topic.first_point)
    return f"{topic.first_point} to {topic.last_point}"


def _name(topic: ErasedTopic) -> str:
    return with_incarnation(topic.topic, topic.incarnation)


_TOPICS: Sequence[Column[ErasedTopic]] = (
    Column("topic", _name),
    Column("records", "records"),
    Column("partitions", "partitions", importance=2),
    Column("segments", "segments", importance=1),
    Column("size of segments", "segment_bytes", human_size, importance=2),
    Column("restore points", _points),
)
"""The columns of what an erasure found. Its segments are written anew as a whole."""


def _source_notes(topics: Sequence[TopicInSource], servers: str) -> list[str]:
    """Return what to do about the records in the source, by the names of its topics."""
    if not topics:
        return []
    compacted = [topic.topic for topic in topics if topic.compacted]
    others = [topic.topic for topic in topics if not topic.compacted]
    brokers = f"--bootstrap-server {shlex.quote(servers)}"
    notes: list[str] = []
    if compacted:
        name = compacted[0] if len(compacted) == 1 else "TOPIC"
        notes.append(
            f"the source still has {join_names(compacted, _NAMED)}, which are compacted: write a record with the key "
            f"and no value, as by: kafka-console-producer.sh {brokers} --topic {shlex.quote(name)} "
            "--property parse.key=true --property null.marker=NULL (and then KEY, a tab, NULL)"
        )
    if others:
        notes.append(
            f"the source still has {join_names(others, _NAMED)}, until the retention there deletes the records; to "
            f"delete all records before an offset: kafka-delete-records.sh {brokers} --offset-json-file FILE"
        )
    notes.append("backups read only what is new: they bring records back only of a topic that is created again")
    return notes


def _show(report: EraseReport, again: str, servers: str, reporter: Reporter) -> None:
    from kbackup.jobs.remains import deletion_sentences, lock_sentences

    if not report.records:
        reporter.line(f"no record of {report.searched:,} matches: nothing was erased")
        return
    reporter.table(_TOPICS, report.topics)
    verb = "erased" if report.confirmed else "would be erased"
    reporter.line(
        f"{plural(report.records, 'record')} {verb}, of {report.searched:,} that were looked at, in "
        f"{plural(report.segments, 'segment')}; {human_total(report.seconds)}"
    )
    kept: list[str] = []
    if report.remains is not None:
        kept = [*lock_sentences(report.remains), *deletion_sentences(report.remains)]
    if not report.confirmed:
        bytes_stay = ["the objects with these records stay for a day after an erasure", *kept]
        reporter.note(
            "; ".join(bytes_stay), *_source_notes(report.source, servers), f"nothing was changed; to erase: {again}"
        )
        return
    deletion = (
        "the objects that still hold them are deleted by the first 'kbackup expire --confirm' after "
        f"{report.deleted_from}"
    )
    reporter.note(
        "; ".join([deletion, *kept]),
        *_source_notes(report.source, servers),
        "copies: run 'kbackup copy' again, and 'kbackup expire' on them; exports and mirrored clusters keep what they "
        "have: see 'Personal data' in the documentation",
    )
