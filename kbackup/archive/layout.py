"""Every key of an archive, built and parsed here alone (names: `formats/README.md`)."""

from __future__ import annotations

import re
from typing import NamedTuple

from kbackup.errors import UsageError

ARCHIVE = "archive.json"
LOCK = "lock.json"
TOPICS = "topics/"
BACKUPS = "backups/"
RESTORES = "restores/"
DRILLS = "drills/"
CHECKPOINTS = "checkpoints/"
EXPIRATIONS = "expirations/"
PINS = "pins/"
SCRATCH = "check/"
DAMAGED = "damaged/"
KEYS = "keys/"  # an encrypting store's own (`store.crypt`)

INTENT = "intent.json"
MANIFEST = "manifest.json"
SEGMENTS = "segments.parquet"
GROUPS = "groups.json"
METADATA = "metadata.json"
REFRESHED = "refreshed.json"

CHECKPOINT = "checkpoint.json"
POINTS = "points.json"

EXPIRED = "expired.json"
SWEPT = "swept.json"

PLAN = "plan.json"
OFFSETS = "offsets.parquet"
REPORT = "report.json"
PAGE = "report.html"

_SEGMENT = re.compile(r"^segment_partition_([0-9]+)_from_offset_([0-9]+)_(records|records\.zst|index)\Z")
_PARTITION_INDEX = re.compile(r"^index_partition_([0-9]+)\Z")
_GROUP_OFFSETS = re.compile(r"^consumer_offsets_partition_([0-9]+)\Z")
_BACKUP = re.compile(r"^backups/([0-9]+)/([^/]+)\Z")
_RESTORE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_CHECKPOINT = re.compile(r"^checkpoints/([0-9]+)/([^/]+)\Z")
_EXPIRATION = re.compile(r"^expirations/([0-9]+)/([^/]+)\Z")
_PIN = re.compile(r"^pins/([0-9]+)\.json\Z")


class SegmentName(NamedTuple):
    """`kind` is 'records', 'records.zst' or 'index'."""

    partition: int
    start: int
    kind: str


def topic_dir(topic: str, incarnation: int = 1, root: str = TOPICS) -> str:
    """The folder of a topic; '@' can't stand in a topic's name, so incarnations never collide with topics."""
    return f"{root}{topic}/" if incarnation == 1 else f"{root}{topic}@{incarnation}/"


def segment_stem(partition: int, first_offset: int) -> str:
    """A segment's name without `_records` or `_index`, as the partition index has it."""
    return f"segment_partition_{partition:03d}_from_offset_{first_offset:010d}"


def records_key(directory: str, partition: int, first_offset: int, compression: str) -> str:
    suffix = "_records.zst" if compression == "zstd" else "_records"
    return directory + segment_stem(partition, first_offset) + suffix


def index_key(directory: str, partition: int, first_offset: int) -> str:
    return directory + segment_stem(partition, first_offset) + "_index"


def index_key_of(records: str) -> str:
    """The segment index beside a records file."""
    return records.removesuffix(".zst").removesuffix("_records") + "_index"


def compression_of(records: str) -> str:
    return "zstd" if records.endswith(".zst") else "none"


def partition_index_key(directory: str, partition: int) -> str:
    return f"{directory}index_partition_{partition:03d}"


def group_offsets_key(directory: str, partition: int) -> str:
    return f"{directory}consumer_offsets_partition_{partition:03d}"


def parse_segment(filename: str) -> SegmentName | None:
    found = _SEGMENT.match(filename)
    return SegmentName(int(found[1]), int(found[2]), found[3]) if found else None


def parse_partition_index(filename: str) -> int | None:
    found = _PARTITION_INDEX.match(filename)
    return int(found[1]) if found else None


def parse_group_offsets(filename: str) -> int | None:
    found = _GROUP_OFFSETS.match(filename)
    return int(found[1]) if found else None


def backup_key(seq: int, name: str) -> str:
    """Zero-padded to ten digits, so that a listing is in order of time."""
    return f"{BACKUPS}{seq:010d}/{name}"


def parse_backup_key(key: str) -> tuple[int, str] | None:
    found = _BACKUP.match(key)
    return (int(found[1]), found[2]) if found else None


def checkpoint_key(seq: int, name: str) -> str:
    return f"{CHECKPOINTS}{seq:010d}/{name}"


def parse_checkpoint_key(key: str) -> tuple[int, str] | None:
    found = _CHECKPOINT.match(key)
    return (int(found[1]), found[2]) if found else None


def expiration_key(number: int, name: str) -> str:
    return f"{EXPIRATIONS}{number:010d}/{name}"


def parse_expiration_key(key: str) -> tuple[int, str] | None:
    found = _EXPIRATION.match(key)
    return (int(found[1]), found[2]) if found else None


def pin_key(seq: int) -> str:
    return f"{PINS}{seq:010d}.json"


def parse_pin_key(key: str) -> int | None:
    found = _PIN.match(key)
    return int(found[1]) if found else None


def restore_key(restore_id: str, name: str) -> str:
    if not _RESTORE_ID.match(restore_id):
        raise UsageError(
            f"restore id {restore_id!r} can't be used", "use letters, digits, '.', '_' and '-', at most 100"
        )
    return f"{RESTORES}{restore_id}/{name}"


def drill_key(drill_id: str, name: str) -> str:
    return f"{DRILLS}{drill_id}/{name}"


def damaged_key(seq: int, key: str) -> str:
    """Where a repair sets aside what it left out of restore point `seq`."""
    return f"{DAMAGED}{seq:010d}/{key}"


def progress_group(restore_id: str) -> str:
    """The consumer group on the target in which a restore keeps its progress."""
    return f"kbackup-restore-{restore_id}"
