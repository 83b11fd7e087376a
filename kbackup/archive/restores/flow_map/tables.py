"""The files of a flow's offset map: parts, each written before a transaction is committed, and folded tables.

mirrors/<source>/<target>/map/<slot>/<number>-<attempt>.parquet is a part, `folded-<number>-<attempt>.parquet` a table
of everything up to the part of that name. The numbers of a slot's parts rise from 1; of several parts of one number
one at most is committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.restores.offset_map import decode, encode
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition

_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("incarnation", pa.int32(), nullable=False),
    pa.field("source", pa.int64(), nullable=False),
    pa.field("target", pa.int64(), nullable=False),
    pa.field("count", pa.int64(), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)
"""Runs: record `source + i` of `incarnation` is at `target + i` of the remote `topic` and `partition`, for
0 <= i < `count`."""

_PREVIOUS = b"kbackup.previous"
_FILE = re.compile(r"^(folded-)?([0-9]{10,})-([0-9a-f]+)\.parquet\Z")

Runs = tuple[Int64Array, Int64Array, Int64Array]
"""Source, target, count: int64[n] each."""


class MappedPartition(NamedTuple):
    """A remote partition, and the incarnation of the source's topic that its records come from."""

    remote: TopicPartition
    incarnation: int


class MapPartName(NamedTuple):
    """Written as `<number>-<attempt>` in the note that is committed with a transaction."""

    number: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> MapPartName | None:
        number, _, attempt = text.partition("-")
        return cls(int(number), attempt) if number.isdecimal() and attempt else None


class Files(NamedTuple):
    """The files of a slot's map, by their names; both in order."""

    map_parts: list[MapPartName]
    folded: list[MapPartName]


def runs_table(runs: Mapping[MappedPartition, Runs]) -> pa.Table:
    """Return runs as a table (`SCHEMA`), in order of partition and incarnation."""
    tables = [
        pa.Table.from_arrays(
            [
                pa.array([key.remote.topic] * len(source), pa.string()),
                pa.array(np.full(len(source), key.remote.partition, np.int32)),
                pa.array(np.full(len(source), key.incarnation, np.int32)),
                *(pa.array(column, pa.int64()) for column in (source, target, count)),
            ],
            schema=SCHEMA,
        )
        for key, (source, target, count) in sorted(runs.items())
    ]
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


def by_incarnation(table: pa.Table) -> Iterator[tuple[MappedPartition, Runs]]:
    """Yield the runs of each partition and incarnation, which stand together in a table."""
    if not len(table):
        return
    topics: Any = table.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    partitions, incarnations = (table.column(name).to_numpy() for name in ("partition", "incarnation"))
    source, target, count = (table.column(name).to_numpy() for name in ("source", "target", "count"))
    moved = (np.diff(codes) != 0) | (np.diff(partitions) != 0) | (np.diff(incarnations) != 0)
    for a, b in pairwise([0, *(np.flatnonzero(moved) + 1).tolist(), len(table)]):
        remote = TopicPartition(topics.dictionary[int(codes[a])].as_py(), int(partitions[a]))
        yield MappedPartition(remote, int(incarnations[a])), (source[a:b], target[a:b], count[a:b])


def folder(source: str, target: str, slot: int) -> str:
    return layout.mirror_key(source, target, f"map/{slot:04d}/")


def write_map_part(
    store: Store, directory: str, name: MapPartName, runs: pa.Table, previous: MapPartName | None
) -> None:
    """Write a part. `previous` is the last committed part of the slot, None for its first one."""
    told = {_PREVIOUS: str(previous or "").encode()}
    key = _key(directory, name)
    store.put_new(key, encode(runs.replace_schema_metadata(told), key))


def read_map_part(store: Store, directory: str, name: MapPartName) -> tuple[pa.Table, MapPartName | None]:
    """Return the runs of a part, and the part before it."""
    key = _key(directory, name)
    table = decode(store.get(key), key, SCHEMA)
    previous = MapPartName.parse((table.schema.metadata or {}).get(_PREVIOUS, b"").decode(errors="replace"))
    return table.replace_schema_metadata(None), previous


def write_folded(store: Store, directory: str, last: MapPartName, runs: pa.Table) -> None:
    """Write a table of all runs up to the part `last`. Two writers' tables of one name say the same: either stays."""
    key = _key(directory, last, "folded-")
    store.put(key, encode(runs, key))


def read_folded(store: Store, directory: str, last: MapPartName) -> pa.Table:
    key = _key(directory, last, "folded-")
    return decode(store.get(key), key, SCHEMA).replace_schema_metadata(None)


def list_files(store: Store, directory: str) -> Files:
    files = Files([], [])
    for entry in store.list(directory):
        if match := _FILE.match(entry.key.removeprefix(directory)):
            (files.folded if match[1] else files.map_parts).append(MapPartName(int(match[2]), match[3]))
    return Files(sorted(files.map_parts), sorted(files.folded))


def delete_files(store: Store, directory: str, files: Files) -> None:
    """Delete files that later ones stand for. One that stays does no harm."""
    keys = [_key(directory, name) for name in files.map_parts]
    keys += [_key(directory, name, "folded-") for name in files.folded]
    store.delete(keys)


def _key(directory: str, name: MapPartName, kind: str = "") -> str:
    return f"{directory}{kind}{name}.parquet"
