"""Put the ids of the target's schema registry into records in place of the source's ids, on workers.

A compiled loop maps the ids that decide alone. Only the remaining frames, of other ids, are looked at one by one:
decoding libraries know nothing of blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kbackup.archive.identity import checked_document
from kbackup.archive.models import DocumentRef, Schemas, load
from kbackup.archive.restores.unmapped import UnmappedRecords, sum_unmapped
from kbackup.archive.schemas import NO_SCHEMAS, SchemaIndex
from kbackup.errors import RefusedError, UndecodableError
from kbackup.formats.schema_ids import PARTS, LeftFrames, Part, SchemaIds, make_map, put_schema, rewrite
from kbackup.jobs.schemas.judgement import JudgedPart, Unmapped
from kbackup.schemas.base import Codec
from kbackup.schemas.decoder import HEADERS, ByRegistry, Undecoded, payload_fits, payload_value
from kbackup.store.base import Store
from kbackup.types import Int64Array, RecordBlock, TopicPartition


class Rewritten(NamedTuple):
    """Records with new ids, and how many of them keep theirs though a serializer seems to have written them."""

    block: RecordBlock
    unmapped: tuple[UnmappedRecords, ...] = ()


@dataclass(frozen=True)
class NewIds:
    """The new ids and GUIDs by the old ones. `contexts` has ids of the source's contexts, apart from the default
    one."""

    ids: Mapping[int, int]
    guids: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, context: str) -> SchemaIds:
        """Return the new ids of topics whose subjects are of a context."""
        pairs: list[tuple[int | str, int | str]] = [*self.ids.items()]
        pairs += self.contexts.get(context, {}).items()
        pairs += self.guids.items()
        return dict(pairs)


# Decoders. A worker is a process that does many tasks: it keeps the decoders that it has read and compiled.

_KEPT = 8  # decoders of one process; the oldest one goes
_decoders: dict[tuple[str, str, Part], ByRegistry] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class ArchivedCodecs:
    """Decodes by the schemas of a restore point: `document` in `store`."""

    store: Store
    document: DocumentRef

    def codec(self, context: str, part: Part, schema: int | str) -> Codec | Undecoded:
        # By the document's bytes: a worker may do tasks of several restores, and one restore has one document.
        key = (self.document.sha256, context, part)
        # Held while the schemas are read, too: the other threads of the worker need the same ones.
        with _lock:
            if key not in _decoders:
                while len(_decoders) >= _KEPT:
                    oldest = next(iter(_decoders))
                    del _decoders[oldest]
                _decoders[key] = self._open(context, part)
            decoder = _decoders[key]
        return decoder.codec(schema)

    def _open(self, context: str, part: Part) -> ByRegistry:
        from kbackup.kafka.schema_registry import BUILT_IN  # it needs an extra

        data = checked_document(self.document, self.store.get(self.document.key))
        schemas = load(Schemas, data, self.document.key)
        return ByRegistry(SchemaIndex(schemas, BUILT_IN, context), HEADERS[part])


@dataclass(frozen=True)
class _TopicRule:
    """What is done with the records of a topic: `rows` are the ids that decide alone, as the compiled loop has them,
    and `known` are all ids that have a new one."""

    parts: Mapping[Part, JudgedPart]
    known: Mapping[Part, SchemaIds]
    rows: Int64Array


@dataclass(frozen=True)
class SchemaRewrite:
    """Maps the records of a restore, or of a mirror. `judged` says how, for keys and values of topics by their names in
    the source; others stay as they are. Without `codecs` nothing is judged by decoding."""

    new: NewIds
    judged: Sequence[JudgedPart]
    unmapped: Unmapped = "keep"
    codecs: ArchivedCodecs | None = None
    hint: str = "restore with --unmapped keep, or with --schemas none"

    def __call__(self, source: TopicPartition, block: RecordBlock) -> Rewritten:
        """Return the records of a partition with new ids; every byte stays where it is.

        `RefusedError` for a record without a new id, where such records are to end the restore."""
        rule = self._rules.get(source.topic)
        if rule is None:
            return Rewritten(block)
        block, left = rewrite(block, rule.rows, list(rule.parts), str(source))
        unmapped: list[UnmappedRecords] = []
        # What the ids alone do not decide: the frames that are left, those of one id together.
        for frames in left:
            new = rule.known[frames.part].get(frames.schema)
            if new is None:
                unmapped.append(self._kept(source, block, frames, is_known=False))
                continue
            part = rule.parts[frames.part]
            fits = np.array(self.fits(block, frames, part, new), np.bool_)
            put_schema(block, frames.select(fits), new)
            if not fits.all():
                unmapped.append(self._kept(source, block, frames.select(~fits), is_known=True))
        return Rewritten(block, sum_unmapped(unmapped))

    def fits(self, block: RecordBlock, frames: LeftFrames, part: JudgedPart, new: int | str) -> list[bool]:
        """Return which of the frames get the schema `new`: those whose data decode by the schema that they name."""
        codec = self._codec(part, frames.schema)
        if codec is None:
            return [False] * len(frames.records)
        return [payload_fits(codec, rest, apart) for rest, apart in payloads(block, frames)]

    def _codec(self, part: JudgedPart, schema: int | str) -> Codec | None:
        """Return what decodes by an archived schema; None if nothing is decoded, or this schema can't be read."""
        if self.codecs is None:
            return None
        codec = self.codecs.codec(part.context, part.part, schema)
        return None if isinstance(codec, Undecoded) else codec

    def certain(self, part: JudgedPart, known: SchemaIds) -> SchemaIds:
        """Return the ids that are mapped without a look at what follows them."""
        if part.how == "asked":
            return known
        if part.how == "subject":
            return {schema: known[schema] for schema in part.certain if schema in known}
        return {}

    @cached_property
    def _rules(self) -> dict[str, _TopicRule]:
        by_topic: dict[str, dict[Part, JudgedPart]] = {}
        for part in self.judged:
            if part.maps or part.how == "unknown":
                by_topic.setdefault(part.topic, {})[part.part] = part
        return {topic: self._rule(parts) for topic, parts in by_topic.items()}

    def _rule(self, parts: Mapping[Part, JudgedPart]) -> _TopicRule:
        known: dict[Part, SchemaIds] = {}
        certain: dict[Part, SchemaIds] = {}
        for name, part in parts.items():
            known[name] = self.new.of(part.context) if part.maps else {}
            certain[name] = self.certain(part, known[name])
        return _TopicRule(parts, known, make_map(certain))

    def _kept(
        self, source: TopicPartition, block: RecordBlock, frames: LeftFrames, *, is_known: bool
    ) -> UnmappedRecords:
        """Return the count of records that stay as they are; `RefusedError` if they may not."""
        records = np.unique(frames.records)  # several headers of a record may name a schema
        offset = int(block.offsets[records[0]])
        if self.unmapped == "fail":
            place = f"{source.topic}:{source.partition}:{offset}"
            why = "by which it does not decode" if is_known else "which the restore point lacks"
            named = f"the {frames.part} of {place} names schema {frames.schema}, {why}"
            raise RefusedError(
                f"{named}: it has no id in the target's registry",
                f"leave the record out with --skip {place}, or {self.hint}",
            )
        unknown, undecoded = len(records), 0
        if is_known:
            unknown, undecoded = 0, len(records)
        return UnmappedRecords(
            topic=source.topic,
            part=frames.part,
            unknown=unknown,
            undecoded=undecoded,
            partition=source.partition,
            offset=offset,
        )


def payloads(block: RecordBlock, frames: LeftFrames) -> Iterable[tuple[bytes, bytes | None]]:
    """Yield for each frame the data that follow it, or that stand apart from it, in the key or value: then the frame is
    in a header."""
    data = np.ascontiguousarray(block.data).data
    # A frame is a zero byte and an id of 4 bytes, or a byte 1 and a GUID of 16 bytes.
    size_of_frame = 5 if isinstance(frames.schema, int) else 17
    starts, sizes = frames.at.tolist(), frames.sizes.tolist()
    field_starts, field_sizes = frames.field_at.tolist(), frames.field_sizes.tolist()
    for start, size, field_start, field_size in zip(starts, sizes, field_starts, field_sizes, strict=True):
        rest = data[start + size_of_frame : start + size].tobytes()
        if field_start == start:
            yield rest, None
        else:
            yield rest, data[field_start : field_start + field_size].tobytes()


# Check the records that were mapped.


@dataclass(frozen=True)
class CheckedRewrite(SchemaRewrite):
    """Maps archived records as they should have been, to compare them with the restored records: each by what it
    decodes to, even if the restore looked at its id alone.

    `target` are the schemas that the target has, with its own ids; None: it was not asked. A record that decodes
    to something else by them stays as it is archived, so that the comparison finds a difference."""

    target: Schemas | None = None

    def certain(self, part: JudgedPart, known: SchemaIds) -> SchemaIds:
        # No id decides alone here: a record that the restore mapped by mistake must be found.
        return {}

    def fits(self, block: RecordBlock, frames: LeftFrames, part: JudgedPart, new: int | str) -> list[bool]:
        # Where the judgement was by id alone, data that do not decode at all (they may be encrypted) are no difference.
        by_id = part.how == "asked" or (part.how == "subject" and frames.schema in part.certain)
        codec = self._codec(part, frames.schema)
        if codec is None:
            return [by_id] * len(frames.records)
        target_codec = self._target_codec(part.part, new)
        fits: list[bool] = []
        for rest, apart in payloads(block, frames):
            if not payload_fits(codec, rest, apart):
                fits.append(by_id)
            elif target_codec is None:
                fits.append(True)
            else:
                fits.append(_decode_alike(codec, target_codec, rest, apart))
        return fits

    def _target_codec(self, part: Part, new: int | str) -> Codec | None:
        """Return what decodes by a schema of the target; None if that is not known here, or can't be read here."""
        if self.target is None:
            return None
        codec = self._target_decoders[part].codec(new)
        return None if isinstance(codec, Undecoded) else codec

    @cached_property
    def _target_decoders(self) -> dict[Part, ByRegistry]:
        from kbackup.kafka.schema_registry import BUILT_IN

        index = SchemaIndex(self.target or NO_SCHEMAS, BUILT_IN)
        return {part: ByRegistry(index, HEADERS[part]) for part in PARTS}


def _decode_alike(one: Codec, other: Codec, rest: bytes, apart: bytes | None) -> bool:
    """Return whether data decode to the same by both schemas; by the first one they do decode."""
    try:
        return payload_value(one, rest, apart) == payload_value(other, rest, apart)
    except UndecodableError:
        return False
