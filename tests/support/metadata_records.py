"""Records of a metadata log: a Hypothesis strategy of every kind, logs in a folder, and what DumpLogSegments prints."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kbackup.migrate.metadata_log.codec import CONTROL_RECORDS, RECORDS, MetadataRecord, RecordSchema, SchemaField
from kbackup.migrate.metadata_log.image import MetadataImage, read_image, reading_of
from kbackup.migrate.metadata_log.log import LogRecord, encode_batch, read_segment, read_snapshot

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in _BITS.items()},
    "uint16": st.integers(0, 0xFFFF),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    "bytes": st.binary(max_size=9),
    "uuid": st.binary(min_size=16, max_size=16).map(lambda b: base64.urlsafe_b64encode(b).decode()[:22]),
}


def _values(field: SchemaField, version: int) -> st.SearchStrategy[Any]:
    kind = field.type.removeprefix("[]")
    one = _struct(field.fields, version) if kind == "struct" else _SIMPLE[kind]
    values = one if kind == field.type else st.lists(one, max_size=3)
    may_be_null = field.nullable is not None and version >= field.nullable
    return values | st.none() if may_be_null else values


def _struct(fields: tuple[SchemaField, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({f.name: _values(f, version) for f in fields if f.since <= version})


@st.composite
def _record(
    draw: st.DrawFn, number: int, schema: RecordSchema, control: bool, version: int | None = None
) -> MetadataRecord:
    """Draw a record of a kind, in one version or in any."""
    if version is None:
        version = draw(st.integers(0, schema.newest))
    data = draw(_struct(schema.fields, version)) | ({"version": version} if control else {})
    return MetadataRecord(schema.name, number, version, data, control)


METADATA = st.one_of([_record(number, schema, control=False) for number, schema in RECORDS.items()])
CONTROL = st.one_of([_record(number, schema, control=True) for number, schema in CONTROL_RECORDS.items()])
BY_KIND = {
    (schema.name, version): _record(number, schema, control, version)
    for table, control in ((RECORDS, False), (CONTROL_RECORDS, True))
    for number, schema in table.items()
    for version in range(schema.newest + 1)
}
"""By name and version."""

HEADER = MetadataRecord("SnapshotHeaderRecord", 3, 0, {"version": 0, "lastContainedLogTimestamp": 0}, control=True)
FOOTER = MetadataRecord("SnapshotFooterRecord", 4, 0, {"version": 0}, control=True)


def write_segment(folder: Path, base_offset: int, *batches: Sequence[MetadataRecord], epoch: int = 1) -> Path:
    """Write a segment whose batches have these records."""
    path = folder / f"{base_offset:020}.log"
    path.write_bytes(_encode(base_offset, epoch, batches))
    return path


def write_snapshot(folder: Path, end_offset: int, *batches: Sequence[MetadataRecord], epoch: int = 1) -> Path:
    """Write a snapshot whose batches have these records, between its header and its footer."""
    path = folder / f"{end_offset:020}-{epoch:010}.checkpoint"
    path.write_bytes(_encode(0, epoch, [[HEADER], *batches, [FOOTER]]))
    return path


def _encode(offset: int, epoch: int, batches: Sequence[Sequence[MetadataRecord]]) -> bytes:
    data = b""
    for records in batches:
        data += encode_batch(offset, epoch, 1_700_000_000_000, records)
        offset += len(records)
    return data


class Dumped(NamedTuple):
    """A record as DumpLogSegments prints it, and as `as_dumped` makes it of ours."""

    offset: int
    timestamp: int
    name: str
    version: int | None
    data: dict[str, Any] | None


_RECORD = re.compile(r"^\| offset: (\d+) CreateTime: (\d+) .*? headerKeys: \[\] (?:payload: )?(.*)$")
_CONTROL = {
    "LeaderChange": "LeaderChangeMessage",
    "SnapshotHeader": "SnapshotHeaderRecord",
    "SnapshotFooter": "SnapshotFooterRecord",
    "KRaftVersion": "KRaftVersionRecord",
    "KRaftVoters": "VotersRecord",
}


def parse(printed: str) -> dict[str, list[Dumped]]:
    """Return the records of each file, by its name."""
    parsed: dict[str, list[Dumped]] = {}
    for line in printed.split("\n"):  # in strings are other ends of lines
        if line.startswith("Dumping "):
            records = parsed.setdefault(Path(line.removeprefix("Dumping ")).name, [])
        elif match := _RECORD.match(line):
            records.append(_dumped(int(match[1]), int(match[2]), match[3]))
        else:
            assert not line.startswith("|"), line
    return parsed


def _dumped(offset: int, timestamp: int, text: str) -> Dumped:
    if text.startswith("{"):
        value = json.loads(text)
        name = "".join(word.capitalize() for word in value["type"].split("_"))
        return Dumped(offset, timestamp, name, value["version"], value["data"])
    if text == "controlType: LEADER_CHANGE(2)":  # 3.9 prints no more of it
        return Dumped(offset, timestamp, "LeaderChangeMessage", None, None)
    kind, _, rest = text.partition(" ")
    data = json.loads(rest)
    return Dumped(offset, timestamp, _CONTROL[kind.rstrip(":")], data["version"], data)


def read(path: Path) -> list[LogRecord]:
    return [record for batch in read_segment(path) for record in batch.records]


def as_dumped(each: LogRecord) -> Dumped:
    record = each.record
    schema = (CONTROL_RECORDS if record.control else RECORDS)[record.number]
    assert isinstance(record.data, dict)
    return Dumped(each.offset, each.timestamp, record.name, record.version, _json(schema.fields, record.data))


def _json(fields: Sequence[SchemaField], data: Mapping[str, Any]) -> dict[str, Any]:
    """As Kafka's converters: bytes in base64; tagged fields only where they differ from their default."""
    return {
        field.name: _value(field, data[field.name])
        for field in fields
        if field.name in data and (field.tag is None or data[field.name] != field.default_value())
    }


def _value(field: SchemaField, value: Any) -> Any:
    if isinstance(value, list):
        return [_value(field, each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return _json(field.fields, value) if isinstance(value, dict) else value


def check_as_printed(files: Sequence[Path], printed: Mapping[str, Sequence[Dumped]]) -> set[str]:
    """Compare every record of the files; return the kinds of records that there are."""
    assert [path.name for path in files] == list(printed)
    names = set()
    for path in files:
        ours = [as_dumped(record) for record in read(path)]
        for our, theirs in zip(ours, printed[path.name], strict=True):
            if theirs.data is None:
                our = our._replace(version=None, data=None)
            assert our == theirs, path.name
        names |= {record.name for record in ours}
    return names


def check_encoding(files: Sequence[Path]) -> None:
    """Every batch, decoded and encoded, has the bytes that Kafka wrote."""
    for path in files:
        data = path.read_bytes()
        for batch in read_segment(path):
            ours = encode_batch(batch.base_offset, batch.epoch, batch.timestamp, [r.record for r in batch.records])
            assert ours == data[batch.position : batch.position + len(ours)], (path.name, batch)


def check_snapshots(log: Path, work: Path) -> int:
    """Replay the only segment of a log up to each snapshot: both hold the same. Return the number of snapshots."""
    (segment,) = log.glob("*.log")
    first, *snapshots = sorted(log.glob("*-*.checkpoint"))
    shutil.copy(first, work)  # the voters, from before the first record
    for path in snapshots:
        end = int(path.name[:20])
        batches = list(read_segment(segment))
        assert end in {batch.last_offset + 1 for batch in batches}
        size = next((batch.position for batch in batches if batch.base_offset == end), segment.stat().st_size)
        (work / segment.name).write_bytes(segment.read_bytes()[:size])
        replayed = read_image(work)
        kept = MetadataImage()
        for each in read_snapshot(path):
            kept.replay(each.record)
        assert reading_of(replayed, "") == reading_of(kept, "")
        assert replayed.partitions == kept.partitions
    return 1 + len(snapshots)
