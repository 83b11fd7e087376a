"""Decode keys and values of records by schema files or a schema registry, and count what could not be decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kbackup.config.models import SchemaRegistry as RegistryConfig
from kbackup.errors import UndecodableError, UsageError
from kbackup.formats.record import Row
from kbackup.schemas.base import missing
from kbackup.schemas.decoder import HEADERS, ByFile, ByRegistry, DecodedRecord, Decoder, Made, Undecoded, file_codec
from kbackup.types import TopicPartition

PARTS = ("key", "value")


@dataclass
class Decoding:
    """Decodes records and counts keys and values that it can't decode; thread-safe. `decoders` are by part: key or
    value. With `mm2`, MirrorMaker 2's internal topics have decoders of their own."""

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
            return DecodedRecord()
        made: list[Made] = []
        for part, data in zip(PARTS, (row.key, row.value), strict=True):
            decoder = None if data is None else self._decoder(tp.topic, part)
            made.append(None if decoder is None or data is None else decoder(data, row.headers))
        return DecodedRecord(*made)

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


def file_decoder(file: str, message: str | None) -> Decoder:
    """Return the decoder of a schema file. Raises `UsageError` if it is invalid or its library is missing."""
    return ByFile(file_codec(Path(file), message))


def registry_decoders(config: RegistryConfig, parts: Iterable[str] = PARTS) -> dict[str, Decoder]:
    """Return decoders by the schema registry. Raises `UsageError` without a registry or its library."""
    if not config.url:
        raise UsageError(
            "no schema registry is named", "give --schema-registry, or schema_registry.url in kbackup.toml"
        )
    try:
        from kbackup.kafka.schema_registry import CachedRegistry, RegistryOptions
    except ImportError as error:
        raise missing(error) from error
    registry = CachedRegistry(RegistryOptions(**msgspec.structs.asdict(config)))
    return {part: ByRegistry(registry, HEADERS[part]) for part in parts}
