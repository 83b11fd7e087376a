"""The journal of a restore: all that it writes down in restores/<id>/, to be resumed, reported and undone.

In the order in which a restore writes them:

1. schemas-before.json and schemas.json, where it registers schemas: before the plan, so that a run which finds a plan
   finds the ids as well. A run that was killed in between left no plan, and the next one takes up its schemas.
2. plan.json: the restore has begun, under its id. More segments than fit are in a table that is created before.
3. settings-before-<n>.json: before settings of the target are changed, which is before its topics are created.
4. topics-<n>.json: the ids of the topics, once these exist and before their first record.
5. map/<unit>/<attempt>-<n>.parquet: parts of the offset map. Workers write each before the transaction that it is of.
6. offsets.parquet: the whole offset map. With it the records are done.
7. groups-before-<n>.json: before offsets of groups are set.
8. report.json: the restore is finished.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import Document, Member, dump, load
from kbackup.archive.restores.map_parts import (
    Cut,
    MapPart,
    MapPartName,
    MappedUnit,
    begun_map_parts,
    committed_names,
    in_order,
    read_map_parts,
    write_map_part,
)
from kbackup.archive.restores.offset_map import decode
from kbackup.archive.restores.plan import RestorePlan, with_segments, without_topics, write_plan
from kbackup.archive.restores.proof import check_proven, unproven_documents
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, RefusedError, UsageError
from kbackup.store.base import Store
from kbackup.util.times import now

D = TypeVar("D", bound=Document)
P = TypeVar("P")
R = TypeVar("R", bound=Member)
R_co = TypeVar("R_co", bound=Member, covariant=True)


_NAMED = 5
"""Ids of restores that an error names at most."""


class _ReportExcerpt(msgspec.Struct):
    """One member of restores/<id>/report.json: topics that the plan has and the restore left out."""

    excluded: tuple[str, ...] = ()


class UndoSteps(Protocol[P, R_co]):
    """How to put back one kind of changes that a restore makes on its target: settings, groups or schemas.

    `plan` reads the documents and asks the target what is there now. It raises `RefusedError` for documents of another
    target, and for changes that the restore's own plan does not bear out. Neither `plan` nor `planned_report` writes
    anything.
    """

    def plan(self) -> P: ...

    def planned_report(self, planned: P) -> R_co: ...

    def carry_out(self, planned: P) -> R_co: ...


@dataclass(frozen=True)
class RestoreJournal:
    """The documents of the restore `restore_id`. They are in `state`, which is the archive's store as a rule."""

    state: Store
    restore_id: str

    def key(self, name: str) -> str:
        """Return the key of a document. `UsageError` for an id that can't be used."""
        return layout.restore_key(self.restore_id, name)

    def read(self, kind: type[D], name: str) -> D | None:
        """Return a document; None if there is none."""
        key = self.key(name)
        try:
            return load(kind, self.state.get(key), key)
        except NotFoundError:
            return None

    def create(self, name: str, document: Document) -> bool:
        """Create a document, which is never replaced. Return whether it was created: another attempt of this restore
        may have been sooner."""
        try:
            self.state.put_new(self.key(name), dump(document))
        except AlreadyExistsError:
            return False
        return True

    # Begin, resume and finish.

    def begin(self, plan: RestorePlan) -> None:
        """Write the plan: the restore has begun, under its id."""
        try:
            write_plan(self.state, plan)
        except AlreadyExistsError as error:
            raise RefusedError(
                f"restore {plan.restore_id} was just begun by another process", "resume it when that one has ended"
            ) from error

    def begun(self) -> RestorePlan | None:
        """Return the plan, without the segments of its units; None if no restore was begun under this id."""
        return self.read(RestorePlan, layout.PLAN)

    def with_segments(self, plan: RestorePlan) -> RestorePlan:
        """Return a plan as it was begun, with the segments of its units."""
        return with_segments(self.state, plan)

    # The offset map, which workers write in parts: one before each transaction, whose commit names it.

    def write_map_part(
        self, unit: int, name: MapPartName, runs: pa.Table, previous: MapPartName | None, cut: Cut
    ) -> None:
        """Write a part of a unit's map. `previous` is the last part of the attempt before, `cut` what windows selected
        since the part before."""
        write_map_part(self.state, self.restore_id, unit, name=name, runs=runs, previous=previous, cut=cut)

    def begun_map_parts(self, unit: int) -> Iterator[pa.Table]:
        """Yield every part that an attempt at the unit has written, whether its transaction was committed or not."""
        return begun_map_parts(self.state, self.restore_id, unit)

    def map_parts_up_to(self, unit: int, last: MapPartName | None) -> list[MapPartName]:
        """Return the parts that a unit has committed, in order, `last` being the one named in its progress."""
        return committed_names(self.state, self.restore_id, unit, last)

    def read_map_parts(self, unit: int, names: Sequence[MapPartName]) -> Iterator[MapPart]:
        """Yield the named parts of a unit, in order."""
        return read_map_parts(self.state, self.restore_id, [(unit, names)])

    def whole_map(self, units: Iterable[MappedUnit]) -> Iterator[MapPart]:
        """Yield the maps of units in order of partition."""
        return in_order(self.state, self.restore_id, units)

    def write_offset_map(self, data: bytes) -> None:
        """Write the whole offset map. A resumed restore writes it once more, with all that it has restored by then."""
        self.state.put(self.key(layout.OFFSETS), data)

    def finish(self, report: Document) -> None:
        """Write the report, unless another attempt of this restore has just ended and written its own."""
        self.create(layout.REPORT, report)

    def finished(self) -> tuple[RestorePlan, pa.Table]:
        """Return the plan, without the topics that the restore left out in the end, and the whole offset map.
        `UsageError` if no restore was begun under this id, `RefusedError` if it is not finished."""
        plan = self.begun()
        if plan is None:
            raise UsageError(
                f"there is no restore {self.restore_id} at {self.state.url}",
                f"check the id{_nearest(self.restore_id, self.state)}, and --state if the restore was given one",
            )
        map_key = self.key(layout.OFFSETS)
        try:
            offsets = decode(self.state.get(map_key), map_key)
        except NotFoundError as error:
            raise RefusedError(
                f"restore {self.restore_id} is not finished: it has no offset map yet",
                f"run the same kbackup restore … --restore-id {self.restore_id} again; topics that failed can be left "
                "out with --exclude-topic",
            ) from error
        left_out = self.left_out()
        if left_out:
            plan = without_topics(self.with_segments(plan), left_out)
        return plan, offsets

    def left_out(self) -> tuple[str, ...] | None:
        """Return the topics, by their names in the source, that a finished restore has left out of its plan. None if
        there is no report: the restore is not finished."""
        key = self.key(layout.REPORT)
        try:
            return msgspec.json.decode(self.state.get(key), type=_ReportExcerpt).excluded
        except NotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptError(f"file {key}: {error}", "take it from a bucket version or another copy") from error

    # Undo.

    def undo(self, steps: UndoSteps[P, R], *, confirm: bool, accept_unproven: bool) -> R:
        """Plan to put back what the restore changed, and with `confirm` do it.

        The documents say what is changed, with the operator's rights. So `RefusedError` with `confirm` where nothing
        proves that the restore wrote them, unless `accept_unproven`: the operator has compared the plan with what the
        restore did. The report names these documents, and `accept_unproven` takes them for proven from now on.
        """
        planned = steps.plan()
        unproven = tuple(unproven_documents(self.state))  # before they are accepted
        if confirm:
            check_proven(self.state, self.restore_id, accept_unproven)
            report = steps.carry_out(planned)
        else:
            report = steps.planned_report(planned)
        return msgspec.structs.replace(report, unproven=unproven)


def _nearest(restore_id: str, state: Store) -> str:
    """Return words that name those ids of restores in the store that are most like `restore_id`."""
    ids = list(state.list_dirs(layout.RESTORES))
    near = difflib.get_close_matches(restore_id, ids, n=_NAMED, cutoff=0.0)
    return f" (the nearest ones there are {', '.join(near)})" if near else ""


class NumberedCaptures(Generic[D]):
    """Documents of one `kind` that capture what a restore was about to change on its target, in files <name>-<n>.json.
    They are numbered from 1. Each is created before the change, and never replaced."""

    kind: type[D]
    name: str

    def __init__(self, journal: RestoreJournal) -> None:
        self.journal = journal

    @property
    def restore_id(self) -> str:
        return self.journal.restore_id

    def numbers(self) -> list[int]:
        """Return the numbers of the captures, ascending."""
        pattern = re.compile(rf"{self.name}-([1-9][0-9]*)\.json")
        numbers: list[int] = []
        for entry in self.journal.state.list(self.journal.key(f"{self.name}-")):
            file = entry.key.rpartition("/")[2]
            if found := pattern.fullmatch(file):
                numbers.append(int(found[1]))
        return sorted(numbers)

    def read(self, number: int) -> D:
        """Return the capture of that number; `NotFoundError` if there is none."""
        key = self.journal.key(self._file(number))
        return load(self.kind, self.journal.state.get(key), key)

    def every(self) -> list[D]:
        """Return the captures, by number."""
        return [self.read(number) for number in self.numbers()]

    def write(self, by: str, cluster_id: str, **content: object) -> int:
        """Store `content` under the next free number and return that number. From then on the captured objects may be
        changed."""
        make: Callable[..., Any] = self.kind
        number = max(self.numbers(), default=0) + 1
        while True:
            document = make(
                restore_id=self.restore_id,
                number=number,
                by=by,
                captured_at=now(),
                target_cluster_id=cluster_id,
                **content,
            )
            if self.journal.create(self._file(number), document):
                return number
            number += 1  # another process has just taken that number

    def _file(self, number: int) -> str:
        return f"{self.name}-{number}.json"
