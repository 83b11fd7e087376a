"""A repair under way, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbackup.archive.models import Manifest
from kbackup.archive.segments.table import Segment
from kbackup.metrics.events import Listener
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """A file that was written again; `what` says how."""

    file: str
    what: str


@dataclass(frozen=True)
class RepairReport:
    """Report of the changes, or (not `confirmed`) of the planned changes.

    `read_data`: every segment was read and its checksum compared, else only its size. `restored` restore points are
    listed again, `lost` ones no longer; `new_point` is the newest of new restore points, of the whole segments of lost
    ones. `losses` are segments and documents that are lost now, in words. `catalog` is the base, None where there was
    none. An adoption counts the `segments` and `records` of its restore point.
    """

    archive: str
    archive_id: str
    confirmed: bool
    read_data: bool
    catalog: int | None = None
    restored: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    mended: tuple[Mended, ...] = ()
    new_point: int | None = None
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    segments: int = 0
    records: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_loss(self) -> bool:
        return bool(self.lost or self.losses)

    @property
    def changes(self) -> bool:
        return bool(self.restored or self.lost or self.losses or self.mended or self.new_point)


@dataclass
class RepairJob:
    """One repair. `store` checks the lease before each write, or keeps writes in memory (a dry run)."""

    plain: Store
    store: Store
    confirm: bool
    read_data: bool
    spark: Callable[[], SparkSession]
    listener: Listener
    sizes: Mapping[str, int] = field(default_factory=dict)
    modified: Mapping[str, float] = field(default_factory=dict)
    unlisted: dict[str, Segment | None] = field(default_factory=dict)
    """Records objects that no catalog lists, as they were read back; None for a damaged one."""
    without_index: set[str] = field(default_factory=set)
    """Keys of `unlisted` whose index is missing or damaged."""
    mended: list[Mended] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    restored: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    losses: list[str] = field(default_factory=list)
    new_points: dict[int, Manifest] = field(default_factory=dict)
