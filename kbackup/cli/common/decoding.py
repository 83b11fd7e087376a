"""Decode keys and values by their schemas: `--decode`, `--schema-registry`, `--value-schema` and related options."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.options import key_option, options
from kbackup.cli.common.output import Reporter
from kbackup.errors import UndecodableError, UsageError
from kbackup.formats.record import Row
from kbackup.schemas.decoder import HEADERS, ByFile, ByRegistry, DecodedRecord, Decoder, Made, Undecoded
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
class DecodingRequest:
    """The values of `decoding_options`."""

    decode: tuple[str, ...]
    key_schema: str | None
    value_schema: str | None
    key_message: str | None
    value_message: str | None
    strict: bool

    def decoding(self, frame: Frame) -> Decoding:
        """Make the decoding. Raises `UsageError` for a contradiction, an invalid schema file or a missing library."""
        files = {"key": (self.key_schema, self.key_message), "value": (self.value_schema, self.value_message)}
        decoders: dict[str, Decoder] = {}
        for part, (file, message) in files.items():
            if file is not None:
                decoders[part] = _by_file(file, message)
            elif message is not None:
                option = "--message" if part == "value" else "--key-message"
                raise UsageError(
                    f"{option} {message} names a message without a schema",
                    f"give --{part}-schema FILE as well",
                )
        named = frame.loaded.origins["schema_registry.url"].kind == "flag"
        requested = [part for part in self.decode if part != MM2] or (PARTS if named else ())
        rest = [part for part in requested if part not in decoders]
        if rest:
            decoders |= _by_registry(frame, rest)
        mm2 = MM2 in self.decode
        if self.strict and not decoders and not mm2:
            raise UsageError(
                "--strict without decoding has no effect", "give --schema-registry, --decode or a schema"
            )
        return Decoding(decoders, self.strict, mm2)


@dataclass
class Decoding:
    """Decodes records and counts keys and values that it can't decode; thread-safe.

    `decoders` are by part: key or value. With `mm2`, MirrorMaker 2's internal topics have decoders of their own."""

    decoders: dict[str, Decoder]
    strict: bool = False
    mm2: bool = False
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    bare: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    reasons: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """Decode a record and count it. Raises `UndecodableError` with `--strict`."""
        parts = self.decode_uncounted(tp, row)
        for part, made in zip(PARTS, parts, strict=True):
            if getattr(row, part) is not None and self._decoder(tp.topic, part) is not None:
                self._count(part, made, f"{tp.topic}:{tp.partition}:{row.offset}")
        return parts

    def decode_uncounted(self, tp: TopicPartition, row: Row) -> DecodedRecord:
        """Decode a record that is counted already."""
        if not self.active:
            return _NOTHING
        return DecodedRecord(self._decode(tp, "key", row.key, row), self._decode(tp, "value", row.value, row))

    @property
    def active(self) -> bool:
        """True if any decoder is set."""
        return bool(self.decoders) or self.mm2

    def _decoder(self, topic: str, part: str) -> Decoder | None:
        if self.mm2:
            from kbackup.kafka.mirror_records import decoder_of

            if decoder := decoder_of(topic, part):
                return decoder
        return self.decoders.get(part)

    def _decode(self, tp: TopicPartition, part: str, data: bytes | None, row: Row) -> Made:
        decoder = None if data is None else self._decoder(tp.topic, part)
        return None if decoder is None or data is None else decoder(data, row.headers)

    def _count(self, part: str, made: Made, address: str) -> None:
        why = made.why if isinstance(made, Undecoded) else "it names no schema" if made is None else ""
        if why and self.strict:
            raise UndecodableError(
                f"the {part} of {address} can't be decoded: {why}", "leave --strict out to show it undecoded"
            )
        with self._lock:
            self.seen[part] += 1
            if made is None:
                self.bare[part] += 1
            elif why:
                self.failed[part] += 1
                self.reasons.setdefault(part, f"{address}: {why}")

    def report_undecoded(self, reporter: Reporter) -> None:
        """Print how many keys and values were not decoded, and why."""
        for part in PARTS:
            of = f"of {self.seen[part]:,} {part}s"
            if self.failed[part]:
                reporter.warning(
                    f"{self.failed[part]:,} {of} could not be decoded and are used undecoded; "
                    f"the first: {self.reasons[part]}"
                )
            if self.bare[part]:
                reporter.note(f"{self.bare[part]:,} {of} name no schema and are used undecoded")


_NOTHING = DecodedRecord()


def _by_file(file: str, message: str | None) -> Decoder:
    from kbackup.schemas.decoder import file_codec

    return ByFile(file_codec(Path(file), message))


def registry_decoding(frame: Frame) -> Decoding:
    """Make the decoding by the schema registry of the configuration, and of MirrorMaker 2's internal topics.

    Raises `UsageError` without a registry or its library."""
    return Decoding(_by_registry(frame, PARTS), mm2=True)


def _by_registry(frame: Frame, parts: Iterable[str]) -> dict[str, Decoder]:
    registry = _registry(frame)
    return {part: ByRegistry(registry, HEADERS[part]) for part in parts}


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
