"""What can happen to a file of an archive, by a seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from scripts.soak.mutation.sample import Objects, Sample

_KINDS = {
    "archive": r"archive\.json",
    "lease": r"lock\.json",
    "intent": r"backups/\d+/intent\.json",
    "manifest": r"backups/\d+/manifest\.json",
    "segments": r"backups/\d+/segments\.parquet",
    "groups": r"backups/\d+/groups\.json",
    "metadata": r"backups/\d+/metadata\.json",
    "refreshed": r"backups/\d+/refreshed\.json",
    "checkpoint": r"checkpoints/\d+/checkpoint\.json",
    "folded points": r"checkpoints/\d+/points\.json",
    "folded segments": r"checkpoints/\d+/segments\.parquet",
    "expiration": r"expirations/0*2/expired\.json",
    "segments left": r"expirations/0*2/segments-.*\.parquet",
    "past expiration": r"expirations/0*1/(expired\.json|segments-.*\.parquet)",
    "expiration step": r"expirations/\d+/(refreshed|swept)\.json",
    "pin": r"pins/\d+\.json",
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
_WAYS = ("flip", "cut", "append", "erase", "swap", "copy", "older", "foreign", "delete")


@dataclass(frozen=True)
class Change:
    """What was done: `way` to a file of `kind`; `keys` are those that have other bytes than before, or none."""

    kind: str
    way: str
    keys: tuple[str, ...]
    objects: Objects


def kind_of(key: str) -> str:
    return next(kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, key))


def change(sample: Sample, rng: random.Random) -> Change:
    """Some change of one file, or of two of a kind. Kinds are as likely as each other."""
    by_kind: dict[str, list[str]] = {}
    for key in sorted(sample.objects):
        by_kind.setdefault(kind_of(key), []).append(key)
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
