"""Keys and values by their schemas, where that is asked for: `--decode`, `--schema-registry`, `--value-schema`, ..."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.key_options import key_option, options
from kbackup.cli.common.output import Reporter
from kbackup.errors import UndecodableError, UsageError
from kbackup.formats.rows import Row
from kbackup.schemas.decoder import ByFile, ByRegistry, DecodedRecord, Decoder, Made, Undecoded
from kbackup.schemas.frame import HEADERS
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry

PARTS = ("key", "value")
MM2 = "mm2"

decoding_options = options(
    click.option(
        "--decode",
        type=click.Choice([*PARTS, MM2]),
        multiple=True,
        help="Decode keys or values by the schema registry; mm2: MirrorMaker 2's internal topics. "
        "[repeatable, default key and value with --schema-registry]",
    ),
    key_option("schema_registry.url", "--schema-registry", help="URL of the schema registry to decode with."),
    key_option("schema_registry.ca_bundle", "--schema-registry-ca"),
    click.option(
        "--key-schema", metavar="FILE", help="Schema file to decode keys: .avsc, .proto, .desc, .pb or .json."
    ),
    click.option("--value-schema", metavar="FILE", help="Schema file to decode values."),
    click.option("--key-message", metavar="NAME", help="Protobuf message of keys. [default the first]"),
    click.option(
        "--message", "value_message", metavar="NAME", help="Protobuf message of values. [default the first]"
    ),
    click.option("--strict", is_flag=True, help="Stop at a key or value that can't be decoded."),
)


@dataclass(frozen=True)
class Wish:
    """What `decoding_options` said."""

    decode: tuple[str, ...]
    key_schema: str | None
    value_schema: str | None
    key_message: str | None
    value_message: str | None
    strict: bool

    def decoding(self, frame: Frame) -> Decoding:
        """`UsageError` for what does not go together, for a file that is no schema, and where a library is missing."""
        files = {"key": (self.key_schema, self.key_message), "value": (self.value_schema, self.value_message)}
        decoders: dict[str, Decoder] = {}
        for part, (file, message) in files.items():
            if file is not None:
                decoders[part] = _by_file(file, message)
            elif message is not None:
                option = "--message" if part == "value" else "--key-message"
                raise UsageError(f"{option} {message} is of no schema", f"give --{part}-schema FILE as well")
        named = frame.loaded.origins["schema_registry.url"].kind == "flag"
        asked = [part for part in self.decode if part != MM2] or (PARTS if named else ())
        rest = [part for part in asked if part not in decoders]
        if rest:
            registry = _registry(frame)
            decoders |= {part: ByRegistry(registry, HEADERS[part]) for part in rest}
        mm2 = MM2 in self.decode
        if self.strict and not decoders and not mm2:
            raise UsageError("--strict is about decoding", "give --schema-registry, --decode or a schema")
        return Decoding(decoders, self.strict, mm2)


@dataclass
class Decoding:
    """Decodes records and counts what it could not; thread-safe. `decoders` are by part; with `mm2`, MirrorMaker 2's
    internal topics have decoders of their own."""

    decoders: dict[str, Decoder]
    strict: bool = False
    mm2: bool = False
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    bare: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    reasons: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """`UndecodableError` where all must be decoded."""
        parts = self.uncounted(tp, row)
        for part, made in zip(PARTS, parts, strict=True):
            if getattr(row, part) is not None and self._decoder(tp.topic, part) is not None:
                self._count(part, made, f"{tp.topic}:{tp.partition}:{row.offset}")
        return parts

    def uncounted(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """For those who have had the record counted before."""
        if not self.active:
            return _NOTHING
        return DecodedRecord(self._made(tp, "key", row.key, row), self._made(tp, "value", row.value, row))

    @property
    def active(self) -> bool:
        """Whether anything may be decoded."""
        return bool(self.decoders) or self.mm2

    def _decoder(self, topic: str, part: str) -> Decoder | None:
        if self.mm2:
            from kbackup.kafka.mirror_records.decoder import decoder_of

            if decoder := decoder_of(topic, part):
                return decoder
        return self.decoders.get(part)

    def _made(self, tp: TopicPartition, part: str, data: bytes | None, row: Row) -> Made:
        decoder = None if data is None else self._decoder(tp.topic, part)
        return None if decoder is None or data is None else decoder(data, row.headers)

    def _count(self, part: str, made: Made, place: str) -> None:
        why = made.why if isinstance(made, Undecoded) else "it names no schema" if made is None else ""
        if why and self.strict:
            raise UndecodableError(
                f"the {part} of {place} can't be decoded: {why}", "without --strict it is shown as it is"
            )
        with self._lock:
            self.seen[part] += 1
            if made is None:
                self.bare[part] += 1
            elif why:
                self.failed[part] += 1
                self.reasons.setdefault(part, f"{place}: {why}")

    def tell(self, reporter: Reporter) -> None:
        """What is shown as it is, and why."""
        for part in PARTS:
            of = f"of {self.seen[part]:,} {part}s"
            if self.failed[part]:
                reporter.warning(
                    f"{self.failed[part]:,} {of} could not be decoded, and are taken as they are; "
                    f"the first: {self.reasons[part]}"
                )
            if self.bare[part]:
                reporter.note(f"{self.bare[part]:,} {of} name no schema, and are taken as they are")


_NOTHING = DecodedRecord()


def _by_file(file: str, message: str | None) -> Decoder:
    from kbackup.schemas.files import file_codec

    return ByFile(file_codec(Path(file), message))


def _registry(frame: Frame) -> SchemaRegistry:
    known = frame.config.schema_registry
    if not known.url:
        raise UsageError(
            "no schema registry is named", "give --schema-registry, or schema_registry.url in kbackup.toml"
        )
    try:
        from kbackup.kafka.schema_registry import RegistryOptions, SchemaRegistry
    except ImportError as error:
        from kbackup.schemas.base import missing

        raise missing(error) from error
    import msgspec

    return SchemaRegistry(RegistryOptions(**msgspec.structs.asdict(known)))
