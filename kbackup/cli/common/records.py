"""Select, decode and print records, for `ls`, `cat` and `find`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, NoReturn

import click

from kbackup.archive.java import JavaFolder
from kbackup.archive.query.browse import Catalogue, PartitionRecords
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.schemas import archived_schemas
from kbackup.archive.segments.window import Window
from kbackup.cli.common.callbacks import zoned
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.options import F, bucket_options, hidden_value, key_option, options, state_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.record_formats import FORMAT_HELP, SHOWS, Show, as_format, as_json
from kbackup.cli.common.session import cached_archive_store
from kbackup.cli.common.window import show_window
from kbackup.config.times import moment_of, now_ms
from kbackup.config.windows import ADDRESSES, TopicAddress
from kbackup.config.windows import parse_address as parse_config_address
from kbackup.errors import KbackupError, UsageError
from kbackup.formats.block import slice_block
from kbackup.formats.record import Row, rows
from kbackup.jobs.decoding import PARTS, UNDECODED, Decoding, file_decoder
from kbackup.library.reading import ArchiveReader, topic_decoders_of
from kbackup.schemas.decoder import DecodedRecord, Decoder
from kbackup.store import Store
from kbackup.types import TopicPartition
from kbackup.util.text import kbackup_command


def print_records(
    batches: Iterable[PartitionRecords],
    show: Show,
    decode: Callable[[TopicPartition, Row], DecodedRecord],
    hidden_bar: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Print records and return their number. Flushes each batch before reading the next, within `hidden_bar`."""
    # By batch, not at the end: a pipe gets what was found so far, and Ctrl-C loses none of it.
    count = 0
    for tp, block in batches:
        with hidden_bar():
            for row in rows(block, str(tp)):
                shown = show(tp, row, decode(tp, row))
                if isinstance(shown, str):
                    sys.stdout.write(shown)
                else:
                    sys.stdout.buffer.write(shown)
                count += 1
            sys.stdout.flush()
    return count


def limit_records(batches: Iterator[PartitionRecords], limit: int | None) -> Iterator[PartitionRecords]:
    """Yield the first `limit` records, and then read no more."""
    if limit is None:
        yield from batches
        return
    remaining = limit
    for tp, block in batches:
        end = min(remaining, len(block))
        records = slice_block(block, 0, end)
        yield PartitionRecords(tp, records)
        remaining -= len(records)
        if remaining == 0:
            return


def report_undecoded(decoding: Decoding, reporter: Reporter) -> None:
    """Print how many keys and values were not decoded, and why."""
    for part in PARTS:
        of = f"of {decoding.seen[part]:,} {part}s"
        if decoding.failed[part]:
            reporter.warning(
                f"{decoding.failed[part]:,} {of} could not be decoded and are used undecoded; "
                f"the first: {decoding.reasons[part]}"
            )
        if decoding.bare[part]:
            reporter.note(f"{decoding.bare[part]:,} {of} name no schema and are used undecoded")


# Open an archive and select records.


class OpenedArchive(NamedTuple):
    store: Store
    catalogue: Catalogue
    reader: ArchiveReader


def open_archive_at(
    context: CommandContext, restore_point: str, to_time: int | None, topic: str | None
) -> OpenedArchive:
    """Open the archive as of a restore point, or of a time (ms since the epoch); notes name the selection."""
    store = cached_archive_store(context)
    reader = ArchiveReader(store, restore_point, to_time)
    catalogue = reader.catalogue(topic)
    if catalogue.choice is not None:
        context.reporter.note(f"{catalogue.archive} as a restore would bring it back:")
        show_window(catalogue.choice, context.reporter)
    context.reporter.warning(*catalogue.warnings)
    readable = store
    if catalogue.restore_point is None:
        # The Java tool may have been killed in the middle of a record: a folder of it shows whole records alone.
        readable = JavaFolder(store)
    return OpenedArchive(readable, catalogue, reader)


def parse_address(text: str) -> TopicAddress:
    """Parse an address in an archive. Raises `UsageError` if it is invalid."""
    try:
        return parse_config_address(text)
    except ValueError:
        raise UsageError(f"{text} is not an address in an archive", f"give {ADDRESSES}") from None


def parse_partition(text: str | None) -> TopicAddress | None:
    """Parse a topic or a partition, the argument of `kbackup ls`; return None for all topics."""
    if text is None or text == "/":
        return None
    address = parse_address(text)
    if address.ranged:
        raise UsageError(f"{text} names offsets; ls lists segments", "give topic or topic:partition")
    return address


def partitions_of(catalogue: Catalogue, address: TopicAddress) -> Iterable[ArchivedPartition]:
    """Return the partition of an address, or all partitions of its topic."""
    if address.partition is not None:
        return [catalogue.partition(address.topic, address.partition)]
    partitions: list[ArchivedPartition] = []
    for topic in catalogue.topics:
        if topic.name == address.topic:
            partitions += topic.partitions
    return partitions


def misplaced_topic(*command: str) -> Callable[[F], F]:
    """Return the hidden option --topic of a command whose topic is an argument: other commands have it as an option.
    `command` are the words that the topic follows."""

    def refuse(context: click.Context, parameter: click.Parameter, topic: str | None) -> None:
        if topic is not None:
            raise UsageError("the topic is an argument, not an option", f"write: {kbackup_command(*command, topic)}")

    return hidden_value("-t", "--topic", "--topics", hidden=True, callback=refuse)


MM2 = "mm2"

record_options = options(
    state_options,
    click.option("--from-time", metavar="TIME", callback=zoned, help="Records from this time on, inclusive."),
    click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records."),
    click.option(
        "--output",
        type=click.Choice(list(SHOWS)),
        help="text (default): place, time, key, value and headers between tabs; json: one line a record; hex.",
    ),
    click.option("-f", "--format", "template", metavar="TEXT", help=FORMAT_HELP),
    click.option(
        "--raw",
        is_flag=True,
        help="Print keys and values as they are archived, undecoded. With --format, print bytes unescaped if stdout is "
        "no terminal.",
    ),
    click.option(
        "--decode",
        type=click.Choice([*PARTS, MM2]),
        multiple=True,
        help="Decode these alone: keys or values by the schemas of the restore point, else by the schema registry; "
        "mm2: MirrorMaker 2's internal topics. [repeatable, default what the restore point has schemas for]",
    ),
    key_option("schema_registry.url", "--schema-registry", help="URL of the schema registry to decode with."),
    key_option("schema_registry.ca_bundle", "--schema-registry-ca"),
    click.option(
        "--key-schema", metavar="FILE", help="Schema file to decode keys: .avsc, .proto, .desc, .pb or .json."
    ),
    click.option("--value-schema", metavar="FILE", help="Schema file to decode values."),
    click.option("--key-message", metavar="NAME", help="Protobuf message of keys. [default the first]"),
    click.option("--message", "value_message", metavar="NAME", help="Protobuf message of values. [default the first]"),
    click.option("--strict", is_flag=True, help="Stop at a key or value that can't be decoded."),
    bucket_options,
)


@dataclass(frozen=True, kw_only=True)
class RecordRequest:
    """The values of the options that `cat` and `find` share: which records to print, how, and decoded by what."""

    times: Window
    restore_point: str
    limit: int | None
    output: str | None
    template: str | None
    raw: bool
    decode: tuple[str, ...]
    key_schema: str | None
    value_schema: str | None
    key_message: str | None
    value_message: str | None
    strict: bool

    @property
    def whole_lines(self) -> bool:
        return self.template is None or self.template.endswith(r"\n")

    def window(self, address: TopicAddress | None) -> Window:
        return self.times if address is None else self.times.at_offsets(address.start, address.end)

    def open(self, context: CommandContext, address: TopicAddress | None) -> OpenedArchive:
        topic = None if address is None else address.topic
        return open_archive_at(context, self.restore_point, self.times.to_time, topic)

    def show(self, context: CommandContext) -> Show:
        """Return the function that prints a record. Raises `UsageError` for a contradiction, and raw bytes on a
        terminal."""
        if self.template is None:
            if context.reporter.json:
                return _documents(context.reporter)
            return SHOWS[self.output or "text"]
        if self.output is not None or context.reporter.json:
            raise UsageError("--format excludes --output and --json", "give one of the three")
        if self.raw and sys.stdout.isatty():
            raise UsageError("--raw prints unescaped bytes, and stdout is a terminal", "send them to a file or a pipe")
        return as_format(self.template, raw=self.raw)

    def decoding(self, context: CommandContext, opened: OpenedArchive) -> Decoding:
        """Return the decoding of the archive's records: what the command line names, else what the restore point has
        schemas for. Raises `UsageError` for a contradiction, an invalid schema file, a missing library that the command
        line needs, and if it names a part without any source of schemas."""
        decoders = self._decoders_of_files()
        rest = [part for part in self._requested_parts(context) if part not in decoders]
        if rest:
            schemas = archived_schemas(opened.reader.schemas(), context.config.schema_registry)
            decoders |= schemas.decoders(rest)
        mm2 = MM2 in self.decode
        is_hex = self.output == "hex" and not context.reporter.json
        if decoders or mm2:
            if is_hex:
                raise UsageError("--output hex does not decode", "decode with --output text or json")
            if self.raw and self.template is None:
                raise UsageError("--raw shows what is archived, undecoded", "leave --raw out to decode")
            return Decoding(decoders, self.strict, mm2)
        # Nobody has asked to decode. What the archive itself can decode is decoded all the same, and no registry is
        # asked.
        if not self.raw and not is_hex:
            archived = topic_decoders_of(opened.reader, _undecoded_warning(context.reporter))
            if archived is not None:
                return Decoding({}, self.strict, by_topic=archived.decoder)
        if self.strict:
            raise UsageError("--strict without decoding has no effect", "give --schema-registry, --decode or a schema")
        return Decoding({})

    def _decoders_of_files(self) -> dict[str, Decoder]:
        """Return the decoders of the parts that have a schema file."""
        decoders: dict[str, Decoder] = {}
        if self.key_schema is not None:
            decoders["key"] = file_decoder(self.key_schema, self.key_message)
        elif self.key_message is not None:
            _refuse_message("--key-message", self.key_message, "--key-schema")
        if self.value_schema is not None:
            decoders["value"] = file_decoder(self.value_schema, self.value_message)
        elif self.value_message is not None:
            _refuse_message("--message", self.value_message, "--value-schema")
        return decoders

    def _requested_parts(self, context: CommandContext) -> Sequence[str]:
        """Return the parts to decode: the parts that `--decode` names, or both if the command line names a registry."""
        named = [part for part in self.decode if part != MM2]
        if named:
            return named
        # A registry in the configuration is for backups and restores: who only reads did not ask for it.
        is_registry_named = context.loaded.origins["schema_registry.url"].kind == "flag"
        return PARTS if is_registry_named else ()


def _undecoded_warning(reporter: Reporter) -> Callable[[KbackupError], None]:
    """Return the function that says why all records are shown undecoded, such as without a library."""

    def warn(error: KbackupError) -> None:
        hint = f"; {error.hint}" if error.hint else ""
        reporter.warning(f"keys and values are shown undecoded: {error.message}{hint}")

    return warn


def _refuse_message(option: str, message: str, schema_option: str) -> NoReturn:
    raise UsageError(f"{option} {message} names a message without a schema", f"give {schema_option} FILE as well")


def _documents(reporter: Reporter) -> Show:
    """Print records as JSON lines. After the first one, errors go to stderr alone: their document is not a record."""

    def show(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
        reporter.documents += 1
        return as_json(tp, row, parts)

    return show


def with_record_request(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Pass the values of `record_options` to a command as a `RecordRequest`, after its context."""

    @functools.wraps(command)
    def run(context: CommandContext, /, **given: Any) -> int | None:
        times = _times_of(given.pop("from_time"), given.pop("to_time"))
        values: dict[str, Any] = {}
        for field in fields(RecordRequest):
            if field.name != "times":
                values[field.name] = given.pop(field.name)
        request = RecordRequest(times=times, **values)
        # What is left are the options that the command has for itself.
        return command(context, request, **given)

    return run


def _times_of(from_time: str | None, to_time: str | None) -> Window:
    """Return the window between two times, both included.

    Raises `UsageError` for an invalid time and for an empty window."""
    now = now_ms()
    start = moment_of("--from-time", from_time, now=now, up=True)
    end = moment_of("--to-time", to_time, now=now)
    if start is not None and end is not None and start > end:
        raise UsageError(
            f"--from-time {from_time} is later than --to-time {to_time}", "give the earlier time as --from-time"
        )
    return Window(from_time=start, to_time=end)
