"""The archive that the Java tool wrote, and the records of its cluster (`java/README.md`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from tests.golden.vectors import record_of
from tests.unit.formats.reference import Record

ROOT = Path(__file__).parent / "java"
_SEGMENT = re.compile(r"segment_partition_([0-9]+)_from_offset_([0-9]+)_records")


class Partition(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    def path(self, form: str) -> Path:
        return ROOT / "archive" / self.topic / form.format(self.number)

    def index_bytes(self) -> bytes:
        return self.path("index_partition_{:03d}").read_bytes()

    def group_bytes(self) -> bytes:
        return self.path("consumer_offsets_partition_{:03d}").read_bytes()

    def segments(self) -> list[Path]:
        """The records files in the order of their offsets."""
        paths = {}
        for path in (ROOT / "archive" / self.topic).iterdir():
            match = _SEGMENT.fullmatch(path.name)
            if match and int(match[1]) == self.number:
                paths[int(match[2])] = path
        return [paths[start] for start in sorted(paths)]

    def truth(self) -> list[Record]:
        lines = (ROOT / "truth" / f"{self}.jsonl").read_text().splitlines()
        return [record_of(json.loads(line)) for line in lines]


PARTITIONS = [
    Partition(path.stem.rpartition("-")[0], int(path.stem.rpartition("-")[2]))
    for path in sorted((ROOT / "truth").iterdir())
]
