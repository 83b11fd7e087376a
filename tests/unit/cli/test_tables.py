"""Every table on a terminal of 80 columns, with long names and large numbers: no line is longer, no cell is folded."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from operator import itemgetter
from types import ModuleType, NoneType, UnionType
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints
from unittest import mock

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup import cli
from kbackup.archive.catalog.points import PointOverview
from kbackup.archive.query.groups import GroupsOverview
from kbackup.archive.query.overview import ArchiveOverview, TopicOverview
from kbackup.cli import backup, cat, diff, expire, groups, info, restore, verify
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.tables import Cell, Column
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.diff import Diff
from kbackup.jobs.export.job import ExportReport
from kbackup.jobs.groups.report import GroupsPlanReport, GroupsReport
from kbackup.jobs.groups.undo import GroupUndoReport
from kbackup.jobs.retention import ExpireReport
from kbackup.jobs.settings.plan import Changes
from kbackup.migrate import cli as migrate_cli
from kbackup.mirror import cli as mirror_cli
from kbackup.mirror.cli import show_dry_run, status, translate
from kbackup.mirror.dry_run import DryRun
from kbackup.mirror.positions import Translation
from kbackup.mirror.status import FlowOverview
from tests.support.printed import Kbackup, Terminal

NAME = "payments.transactions.settled.europe-west.v2-retries-1"
NUMBER = 9_012_345_678_901
TIME = "2026-10-22T02:30:00.000Z"


def hostile(kind: Any, name: str = "") -> Any:
    """A value of a type: the longest names and large numbers, one item in each collection."""
    origin, inner = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return hostile(inner[0], name)
    if origin is Literal:
        return max(inner, key=lambda word: len(str(word)))
    if origin in (Union, UnionType):
        return hostile(next(k for k in inner if k is not NoneType), name)
    if origin is tuple:
        return (hostile(inner[0], name),) if inner[-1] is Ellipsis else tuple(hostile(k, name) for k in inner)
    if isinstance(origin, type) and len(inner) == 2:
        return {hostile(inner[0]): hostile(inner[1], name)}
    if isinstance(origin, type):
        return [hostile(inner[0], name)]
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        hints = get_type_hints(kind, include_extras=True)
        fields: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
        return kind(**{field: hostile(hints[field], field) for field in fields if field != "choice"})
    if kind is int and name.endswith("timestamp"):
        return 1_700_000_000_000
    if kind is int and name in ("number", "restore_point", "restore_points", "partition", "as_of", "incarnation"):
        return 365
    if name == "why":
        return ""
    return {int: NUMBER, float: 1e6, bool: True, str: TIME if name.endswith("_at") else NAME}.get(kind, NAME)


ROW: dict[str, Cell] = {
    **{"topic": NAME, "partition": 365, "state": "present", "file": f"topics/{NAME}/segment_partition_003_records"},
    **dict.fromkeys(("as_of", "partitions"), 365),
    **dict.fromkeys(
        ("segments", "records", "bytes", "stored_bytes", "largest", "start", "end", "first", "last"), NUMBER
    ),
    **{"min_timestamp": 1_700_000_000_000, "max_timestamp": 1_700_000_000_000},
}

SHOWN: dict[str, Callable[[Reporter], object]] = {
    "list": lambda r: info.show_points([hostile(PointOverview)] * 100, r),
    "ls": lambda r: cat.show_rows("topics", [ROW], r),
    "ls TOPIC": lambda r: cat.show_rows("partitions", [ROW], r),
    "ls TOPIC:N": lambda r: cat.show_rows("segments", [ROW], r),
    "info": lambda r: info.show_archive(hostile(ArchiveOverview), r),
    "info TOPIC": lambda r: info.show_topic(hostile(TopicOverview), r),
    "backup": lambda r: backup.show_backup(hostile(BackupReport), r),
    "export": lambda r: backup.show_exported(hostile(ExportReport), r),
    "expire": lambda r: expire.show_expiry(hostile(ExpireReport), r),
    "verify --against": lambda r: verify.show_comparison(hostile(AgainstReport), r),
    "groups show": lambda r: groups.show_groups(hostile(GroupsOverview), r),
    "groups show GROUP": lambda r: groups.show_group(hostile(GroupsOverview).groups[0], hostile(GroupsOverview), r),
    "groups plan": lambda r: groups.show_plan(hostile(GroupsPlanReport), r),
    "groups apply": lambda r: groups.show_applied(hostile(GroupsReport), "kbackup groups undo", r),
    "groups undo": lambda r: groups.show_undone(hostile(GroupUndoReport), r),
    "diff": lambda r: diff.show_difference(hostile(Diff), r),
    "restore --with": lambda r: restore.show_changes(hostile(Changes), r),
    "mirror --dry-run": lambda r: show_dry_run.show_dry_run(hostile(DryRun), r),
    "mirror status": lambda r: status.show_flow(hostile(FlowOverview), r),
    "mirror translate": lambda r: translate.show(hostile(Translation), r),
}

COMMANDS = {"log": ("log",), "config": ("config",), "config --keys": ("config", "--keys")}
FOLDED = re.compile(r"^\s*(,\d|\d+,$|-\d\d|:\d\d|\d\dZ)")


def printed(show: Callable[[], object], columns: int = 80) -> str:
    """What `show` prints on a terminal, without colors."""
    terminal = {"TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"}
    context = click.Context(click.Command("kbackup"))
    with (
        redirect_stdout(Terminal()) as screen,
        redirect_stderr(screen),
        mock.patch.dict("os.environ", terminal),
        context,
    ):
        show()
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


def check(show: Callable[[], object]) -> None:
    """Check the tables alone: lines of text are as long as they are."""
    with mock.patch.multiple(Reporter, line=mock.DEFAULT, warning=mock.DEFAULT, note=mock.DEFAULT):
        lines = printed(show).splitlines()
    assert len(lines) > 1
    for line in lines:
        assert len(line) <= 80, line
        assert not FOLDED.search(line), line


@pytest.mark.parametrize("name", SHOWN)
def test_reports_fit_80_columns(name: str) -> None:
    check(lambda: SHOWN[name](Reporter()))


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_fit_80_columns(name: str, root: str) -> None:
    check(lambda: cli.main([*COMMANDS[name], "--archive", root]))


def class_named(module: ModuleType, name: str) -> type[Any]:
    """The class that a module knows by a name, if only for the type checker."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            module = importlib.import_module(str(node.module))
    found: type[Any] = getattr(module, name)
    return found


def annotation(kind: type[Any], attribute: str) -> str:
    """The type of an attribute, as the class writes it. `AssertionError` if the class has no such attribute."""
    for each in kind.__mro__:
        written = inspect.get_annotations(each).get(attribute)
        if written is not None:
            return written.__forward_arg__ if isinstance(written, ForwardRef) else str(written)
        member = each.__dict__.get(attribute)
        if isinstance(member, property):
            return str(member.fget.__annotations__["return"])
    raise AssertionError(f"{kind.__name__} has no attribute {attribute}")


def tables_of_commands() -> Iterator[tuple[str, type[Any], Sequence[Column[Any]]]]:
    """Each table of a module of a command, with its name and the class of its rows."""
    for package in (cli, migrate_cli, mirror_cli):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, text in vars(module).get("__annotations__", {}).items():
                rows = re.fullmatch(r"Sequence\[Column\[(\w+)\]\]", text)
                if rows is not None:
                    yield f"{found.name}.{name}", class_named(module, rows[1]), getattr(module, name)


@pytest.mark.parametrize(("rows", "columns"), [pytest.param(*table, id=name) for name, *table in tables_of_commands()])
def test_columns_name_attributes_of_their_rows(rows: type[Any], columns: Sequence[Column[Any]]) -> None:
    """The type checker does not see into a name."""
    for column in columns:
        if not isinstance(column.value, str):
            continue
        kind = rows
        first, *others = column.value.split(".")
        text = annotation(kind, first)
        for attribute in others:
            kind = class_named(sys.modules[kind.__module__], text)
            text = annotation(kind, attribute)


names = st.text("abcdefgh.-", min_size=1, max_size=60)
CELLS: dict[str, st.SearchStrategy[Cell]] = {
    "name": names,
    "number": st.integers(0, NUMBER * 100),
    "time": st.just(TIME),
    "prose": st.lists(names, min_size=1, max_size=8).map(" ".join),
}
tables = st.lists(st.tuples(st.sampled_from(sorted(CELLS)), st.integers(1, 5)), min_size=1, max_size=9)


@given(tables, st.integers(30, 200), st.data())
def test_any_table_fits_any_terminal(kinds: list[tuple[str, int]], width: int, data: st.DataObject) -> None:
    """Numbers and times are whole. What is left out is less important than what is shown, or to the right of it."""
    columns: list[Column[list[Cell]]] = []
    for at, (kind, importance) in enumerate(kinds):
        columns.append(Column(f"{kind} {at}", itemgetter(at), importance=importance, prose=kind == "prose"))
    rows = [[data.draw(CELLS[kind]) for kind, _ in kinds] for _ in range(2)]
    screen = printed(lambda: Reporter().table(columns, rows), width)
    table, _, note = screen.partition("--wide also shows: ")
    assert all(len(line.rstrip()) <= width for line in table.splitlines()), screen
    out = [column for column in columns if column.name in note]
    shown = [column for column in columns if column not in out]
    assert shown
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            if column in shown and isinstance(cell, int):
                assert f"{cell:,}" in table, screen
            if column in shown and cell == TIME:
                assert "2026-10-22 02:30Z" in table, screen
    for left in out:
        assert all(column.importance >= left.importance for column in shown[1:]), screen


def test_wide_prints_on_a_terminal_what_a_pipe_gets(root: str, kbackup: Kbackup) -> None:
    plain = kbackup("list", "-a", root).out
    assert printed(lambda: cli.main(["list", "-a", root, "--wide"])) == plain
    assert "STORED" in plain
