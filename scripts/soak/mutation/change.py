"""Change a file of an archive, by a seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from scripts.soak.mutation.sample import Objects, Sample

_KINDS = {
    "archive": r"archive\.json",
    "lease": r"lock\.json",
    "latest": r"catalog/latest\.json",
    "catalog": r"catalog/\d+\.json",
    "table": r"tables/.*\.parquet",
    "derived mark": r"derived\.json",
    "manifest": r"points/[^/]+/manifest\.json",
    "groups": r"points/[^/]+/groups\.json",
    "metadata": r"points/[^/]+/metadata\.json",
    "records": r"topics/.*_records",
    "compressed records": r"topics/.*_records\.zst",
    "segment index": r"topics/.*_from_offset_\d+_index",
    "partition index": r"topics/.*/index_partition_\d+",
    "group offsets": r"topics/.*/consumer_offsets_partition_\d+",
    "plan": r"restores/[^/]+/plan\.json",
    "map part": r"restores/[^/]+/map/.*",
    "offset map": r"restores/[^/]+/offsets\.parquet",
    "report": r"restores/[^/]+/report\.json",
}
_BY_CATALOG = (
    "catalog",
    "table",
    "manifest",
    "groups",
    "metadata",
    "records",
    "compressed records",
    "segment index",
)
"""The kinds of files that a catalog refers to; those that only an earlier one refers to are kinds of their own."""
_WAYS = ("flip", "cut", "append", "erase", "swap", "copy", "older", "foreign", "delete")


@dataclass(frozen=True)
class Change:
    """A change: `way` was done to a file of `kind`; `keys` are the objects that were changed or deleted."""

    kind: str
    way: str
    keys: tuple[str, ...]
    objects: Objects


def kind_of(key: str, sample: Sample) -> str:
    kind = next(kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, key))
    if kind not in _BY_CATALOG or key in sample.newest:
        return kind
    return f"earlier {kind}" if kind in ("catalog", "table") else "dropped"


def change(sample: Sample, rng: random.Random) -> Change:
    """Some change of one file, or of two of a kind. Kinds are as likely as each other."""
    by_kind: dict[str, list[str]] = {}
    for key in sorted(sample.objects):
        by_kind.setdefault(kind_of(key, sample), []).append(key)
    while True:
        kind = rng.choice(sorted(by_kind))
        way = rng.choice(_WAYS)
        key = rng.choice(by_kind[kind])
        changed = _changed(sample, rng, way, key, rng.choice(by_kind[kind]))
        objects = {k: v for k, v in (sample.objects | changed).items() if v is not None}
        keys = tuple(sorted(k for k in changed if objects.get(k) != sample.objects[k]))
        if keys:
            return Change(kind, way, keys, objects)


def _changed(sample: Sample, rng: random.Random, way: str, key: str, other: str) -> dict[str, bytes | None]:
    """The new bytes of the keys that it is about; None: deleted."""
    data = sample.objects[key]
    match way:
        case "swap":
            return {key: sample.objects[other], other: data}
        case "copy":
            return {key: sample.objects[other]}
        case "older":
            return {key: sample.older.get(key, data)}
        case "foreign":
            return {key: sample.foreign.get(key, data)}
        case "delete":
            return {key: None}
        case "cut":
            return {key: data[: rng.randrange(len(data))]}
        case "append":
            return {key: data + rng.randbytes(rng.randint(1, 64))}
        case "erase":
            at = rng.randrange(len(data))
            size = min(rng.randint(1, 64), len(data) - at)
            return {key: data[:at] + bytes(size) + data[at + size :]}
        case _:
            flipped = bytearray(data)
            for _ in range(rng.choice((1, 1, 1, 2, 8))):
                flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return {key: bytes(flipped)}
