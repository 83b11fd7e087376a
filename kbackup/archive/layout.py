"""Every key of an archive, built and parsed here alone (names: `formats/README.md`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

from kbackup.errors import UsageError
from kbackup.store.base import KeyClass

if TYPE_CHECKING:
    from kbackup.types import Incarnation  # it needs pyarrow, which takes long to import

ARCHIVE = "archive.json"
LOCK = "lock.json"
TOPICS = "topics/"
CATALOG = "catalog/"
LATEST = "catalog/latest.json"
TABLES = "tables/"
POINTS = "points/"
DERIVED = "derived.json"
RESTORES = "restores/"
DRILLS = "drills/"
VERIFICATIONS = "verifications/"
MIRRORS = "mirrors/"
SCRATCH = "check/"
KEYS = "keys/"  # an encrypting store's own (`store.crypt`)

BESIDE = (RESTORES, DRILLS, VERIFICATIONS, MIRRORS)
"""Folders of files that no restore point needs, and that a repair can't make anew."""

MANIFEST = "manifest.json"
GROUPS = "groups.json"
METADATA = "metadata.json"
SCHEMAS = "schemas.json"
DELETIONS = "deletions.json"
SCHEMAS_BEFORE = "schemas-before.json"

PLAN = "plan.json"
OFFSETS = "offsets.parquet"
REPORT = "report.json"
TARGET_TOPICS = "topics"
"""How the names of the documents begin that have the topics of a restore; a number and .json follow."""
PAGE = "report.html"
STATUS = "status.json"

_SEGMENT = re.compile(
    r"^segment_partition_([0-9]+)_from_offset_([0-9]+)(?:-r([0-9]+)(?:c([0-9]+))?)?_(records|records\.zst|index)\Z"
)
SPECIAL_NAME = "_from_offset_(0[0-9]{10}|[0-9]+-r)"
"""Found in the names of segments with more zeros than ten digits need, in those of rewritten segments (`segment_stem`),
and in no others."""
_PARTITION_INDEX = re.compile(r"^index_partition_([0-9]+)\Z")
_GROUP_OFFSETS = re.compile(r"^consumer_offsets_partition_([0-9]+)\Z")
_RESTORE_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_TOPIC_KEY = re.compile(r"^topics/([A-Za-z0-9._-]{1,249})(?:@([0-9]+))?/([^/]+)\Z")
_CATALOG = re.compile(r"^catalog/([0-9]+)\.json\Z")
_TABLE = re.compile(r"^tables/([0-9]+)-[0-9a-f]+-[0-9]+\.parquet\Z")
_VERIFICATION = re.compile(r"^verifications/([0-9T-]{23}Z-(full|quick|partial)-[0-9a-f]+)/report\.json\Z")
_FOLDER_BESIDE = re.compile(r"^(?:restores|drills|verifications)/[^/]+/")
_POINT = re.compile(r"^points/([0-9]+)-([0-9a-f]+)/([^/]+)\Z")
_PLAIN = (ARCHIVE, LOCK)
_REPLACED = (LOCK, LATEST, DERIVED)
_SMALL = (*_PLAIN, LATEST, DERIVED, KEYS)
_SMALL_BYTES = 16 << 20
_FLOW_FILE = re.compile(r"^mirrors/[^/]+/[^/]+/(?:(?:status|lock)\.json\Z|map/)")


def key_class(key: str) -> KeyClass:
    """Return the class of a key: which objects are replaced, or removed soon, which are not encrypted, and how large
    they may be.

    archive.json and lock.json show that there is an archive and who writes to it; check/ probes the store."""
    if key.startswith(SCRATCH):
        return KeyClass(replaced=True, plain=True)
    name = key.rpartition("/")[2]
    is_derived = key.startswith(TOPICS) and name.startswith(("index_partition_", "consumer_offsets_partition_"))
    is_replaced = key in _REPLACED or is_derived or _FLOW_FILE.match(key) is not None
    classes = KeyClass(is_replaced, key in _PLAIN)
    if key.startswith(_SMALL):
        return classes._replace(largest=_SMALL_BYTES)
    return classes


_READER_GROUPS = ("kbackup-backup-", "kbackup-verify-")
_RESTORE_GROUPS = "kbackup-restore-"
_MIRROR_GROUPS = "kbackup-mirror-"
_OWN_GROUPS = (*_READER_GROUPS, _RESTORE_GROUPS, _MIRROR_GROUPS, "kbackup-probe-")
_ADMIN_GROUP = "kbackup-groups"


class SegmentName(NamedTuple):
    """`kind` is 'records', 'records.zst' or 'index'. `extra_zeros` counts those before the offset's ten digits.
    `rewrite` is the number of the rewrite that wrote the segment, 0 for one that was not rewritten. `compacted` is the
    restore point for which, and for all later ones, superseded records were left out; 0 if none were."""

    partition: int
    start: int
    kind: str
    extra_zeros: int = 0
    rewrite: int = 0
    compacted: int = 0


def topic_dir(topic: str, incarnation: int = 1, root: str = TOPICS) -> str:
    """Return the folder of a topic; '@' can't stand in a topic's name, so incarnations never collide with topics."""
    # The first incarnation has the folder that the Java tool gives its topics.
    if incarnation == 1:
        return f"{root}{topic}/"
    return f"{root}{topic}@{incarnation}/"


def segment_stem(partition: int, first_offset: int, extra_zeros: int = 0, rewrite: int = 0, compacted: int = 0) -> str:
    """Return a segment's name without `_records` or `_index`, as the partition index has it. `extra_zeros`
    zeros more stand before the offset where an orphan segment has the plain name. A segment that `rewrite` wrote in
    place of others has that number behind the offset, so that no name is given twice. One that lacks superseded
    records has the oldest restore point behind it that does not need them: `compacted`."""
    written_by = f"-r{rewrite}" if rewrite else ""
    if compacted:
        written_by += f"c{compacted}"
    return f"segment_partition_{partition:03d}_from_offset_{'0' * extra_zeros}{first_offset:010d}{written_by}"


def records_key(
    directory: str,
    partition: int,
    first_offset: int,
    compression: str,
    extra_zeros: int = 0,
    rewrite: int = 0,
    compacted: int = 0,
) -> str:
    suffix = "_records.zst" if compression == "zstd" else "_records"
    return directory + segment_stem(partition, first_offset, extra_zeros, rewrite, compacted) + suffix


def index_key_of(records: str) -> str:
    """Return the segment index beside a records file."""
    return records.removesuffix(".zst").removesuffix("_records") + "_index"


def stem_of(records: str) -> str:
    """Return the name of a segment by its records file."""
    return index_key_of(records).rpartition("/")[2].removesuffix("_index")


def compression_of(records: str) -> str:
    return "zstd" if records.endswith(".zst") else "none"


def partition_index_key(directory: str, partition: int) -> str:
    return f"{directory}index_partition_{partition:03d}"


def group_offsets_key(directory: str, partition: int) -> str:
    return f"{directory}consumer_offsets_partition_{partition:03d}"


def parse_segment(filename: str) -> SegmentName | None:
    found = _SEGMENT.match(filename)
    if found is None:
        return None
    partition, digits, rewrite, compacted, kind = found.groups()
    start = int(digits)
    extra_zeros = max(0, len(digits) - len(f"{start:010d}"))
    return SegmentName(int(partition), start, kind, extra_zeros, int(rewrite or 0), int(compacted or 0))


def rewrite_of(records: str) -> int:
    """Return the number of the rewrite that wrote a records object, by its key; 0 for one that was not rewritten."""
    name = parse_segment(records.rpartition("/")[2])
    return name.rewrite if name is not None else 0


def compacted_of(records: str) -> int:
    """Return the oldest restore point for which a records object, by its key, has all that is needed, because it lacks
    superseded records; 0 if it lacks none."""
    name = parse_segment(records.rpartition("/")[2])
    return name.compacted if name is not None else 0


def is_records_key(key: str, directory: str, partition: int, first_offset: int) -> bool:
    """Return whether a segment that begins at `first_offset` may have `key`."""
    compression = compression_of(key)
    # Nearly every segment has this name: 50,000 take 50 ms, and the name is parsed for the others alone.
    if key == records_key(directory, partition, first_offset, compression):
        return True
    name = parse_segment(key.removeprefix(directory))
    if name is None:
        return False
    return key == records_key(
        directory, partition, first_offset, compression, name.extra_zeros, name.rewrite, name.compacted
    )


def parse_partition_index(filename: str) -> int | None:
    found = _PARTITION_INDEX.match(filename)
    if found is None:
        return None
    return int(found[1])


def parse_group_offsets(filename: str) -> int | None:
    found = _GROUP_OFFSETS.match(filename)
    if found is None:
        return None
    return int(found[1])


def is_restore_id(text: str) -> bool:
    return _RESTORE_ID.match(text) is not None


def restore_key(restore_id: str, name: str) -> str:
    if not is_restore_id(restore_id):
        raise UsageError(
            f"restore id {restore_id!r} can't be used", "use letters, digits, '.', '_' and '-', at most 100"
        )
    return f"{RESTORES}{restore_id}/{name}"


def drill_key(drill_id: str, name: str) -> str:
    return f"{DRILLS}{drill_id}/{name}"


def verification_key(verification_id: str) -> str:
    return f"{VERIFICATIONS}{verification_id}/{REPORT}"


def parse_verification_key(key: str) -> tuple[str, str] | None:
    """Return the id and the scope of a verification. Ids begin with the time, so that a listing is in order."""
    found = _VERIFICATION.match(key)
    if found is None:
        return None
    return found[1], found[2]


def folder_beside(key: str) -> str:
    """Return the folder of the restore, drill or verification that a file belongs to; '' for other files."""
    found = _FOLDER_BESIDE.match(key)
    if found is None:
        return ""
    return found[0]


def progress_group(restore_id: str, number: int = 0) -> str:
    """Return a consumer group on the target in which a restore keeps its progress, the first one by default. '@' can't
    stand in a restore's id, so that no two restores share a group."""
    group = f"{_RESTORE_GROUPS}{restore_id}"
    return f"{group}@{number}" if number else group


def reader_group(kind: Literal["backup", "verify"], run: str) -> str:
    """Return the consumer group that a run names when it reads a cluster; it commits nothing."""
    return f"kbackup-{kind}-{run}"


def is_own_group(group: str) -> bool:
    """Return whether kbackup itself uses a group. Its offsets hold for one cluster: no archive and no mirror may
    carry them to another."""
    return group.startswith(_OWN_GROUPS) or group == _ADMIN_GROUP


def parse_topic_key(key: str) -> tuple[Incarnation, str] | None:
    """Return the incarnation and the file name of an object in the folder of a topic."""
    found = _TOPIC_KEY.match(key)
    if found is None:
        return None
    topic, incarnation, filename = found.groups()
    return (topic, int(incarnation or 1)), filename


def catalog_key(number: int) -> str:
    """Return the key of a catalog. Its number has ten digits, so that a listing is in order."""
    return f"{CATALOG}{number:010d}.json"


def parse_catalog_key(key: str) -> int | None:
    found = _CATALOG.match(key)
    if found is None:
        return None
    return int(found[1])


def table_key(catalog: int, token: str, index: int) -> str:
    return f"{TABLES}{catalog:010d}-{token}-{index}.parquet"


def parse_table_key(key: str) -> int | None:
    """Return the number of the catalog that the table was first written for."""
    found = _TABLE.match(key)
    if found is None:
        return None
    return int(found[1])


def point_key(number: int, run: str, name: str) -> str:
    return f"{point_prefix(number)}{run}/{name}"


def point_prefix(number: int) -> str:
    """Return how the keys of a restore point's documents begin, whichever run wrote them."""
    return f"{POINTS}{number:010d}-"


def parse_point_key(key: str) -> tuple[int, str, str] | None:
    """Return the restore point's number, the run, and the name of the document."""
    found = _POINT.match(key)
    if found is None:
        return None
    number, run, name = found.groups()
    return int(number), run, name


def mirror_key(source: str, target: str, name: str) -> str:
    """Return a document of the flow `source->target`. Aliases are percent-encoded, dots too."""
    return f"{MIRRORS}{_alias(source)}/{_alias(target)}/{name}"


def _alias(alias: str) -> str:
    return quote(alias, safe="").replace(".", "%2E")


def mirror_group(source: str, target: str) -> str:
    """Return the consumer group on the target that holds the applied positions of the flow `source->target`."""
    # An alias may hold a dash, and no dot: the dot tells the two apart.
    return f"{_MIRROR_GROUPS}{_alias(source)}.{_alias(target)}"


def mirror_transactional_id(source: str, target: str, slot: int) -> str:
    return f"{mirror_group(source, target)}-{slot}"
