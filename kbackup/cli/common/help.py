"""The help of a command with many options: in groups with headings, and the rare ones only with `--help-all`."""

from __future__ import annotations

import re

import click

from kbackup.store.registry import KINDS
from kbackup.util.text import plural

_FEW = 15
"""A command with so many options needs neither headings nor an option for more."""

_OTHERS = "How"
HEADINGS = {
    "What": (
        "--against --restore-point --to-time --from-time --tz --topics --exclude-topics --groups --exclude-groups "
        "--no-groups --range --skip --where --with --schemas --unmapped --schemas-topics --no-schemas-topics "
        "--in --regex --ignore-case --jq --tail --limit"
    ),
    "Where from": "source_bootstrap --source-config --schema-registry --schema-registry-ca",
    "Where to": (
        "target_bootstrap compared_bootstrap --target-config --map --map-regex --map-group --into-existing "
        "--topic-config --replication-factor --target-schema-registry --target-schema-registry-ca --subject-prefix "
        "--delta --parquet --one-table"
    ),
    _OTHERS: "--guide --dry-run --count --restore-id --answers",
    "The archive": "--archive --encryption-key --accept-rollback --cache --state",
    "Output and configuration": (
        "--json --wide --quiet --verbose --debug --metrics-file --config --set --help --help-all"
    ),
}
"""The options below each heading, in their order; an option that stands nowhere comes last below `_OTHERS`. An option
is named by its long name, or by its name in Python where the same long name has two meanings."""

RARE = (
    "--accept-rollback --accept-unproven --adopt-cluster --adopt-topics --cache --compression --debug "
    "--isolation-level --key-message --master --message --metrics-file --no-schemas-topics --recheck-bytes "
    "--recheck-compacted --schema-registry-ca --schemas-topics --segment-bytes --small-bytes --small-segments --state "
    "--strict --subject-prefix --target-schema-registry-ca --transaction-wait-seconds --transactions --unmapped --wide"
)
"""The options that only `--help-all` shows, beside the options of stores."""


def _beginnings_of_store_flags() -> tuple[str, ...]:
    beginnings: list[str] = []
    for kind in KINDS.values():
        if kind.flags:
            beginnings += [f"--{kind.section}-", f"--to-{kind.section}-"]
    return tuple(beginnings)


_STORE_FLAGS = _beginnings_of_store_flags()
"""What the flags of stores begin with. They are rare, as a configuration has them."""

_SHOWS_ALL = "kbackup help-all"
"""The key of a click context below which it is noted that all options are to be shown."""


class SectionedCommand(click.Command):
    """A command whose help has its options below headings, and the rare ones only with `--help-all`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        if len(_shown_options(params)) > _FEW:
            params.append(_HELP_ALL)
        return params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = _shown_options(self.get_params(ctx))
        if len(options) <= _FEW:
            super().format_options(ctx, formatter)
            return
        shows_all = ctx.meta.get(_SHOWS_ALL, False)
        rare = [option for option in options if _is_rare(option)]
        if not shows_all:
            options = [option for option in options if option not in rare]
        record_of = _whole_record if shows_all else _short_record
        rows: dict[str, list[tuple[str, str]]] = {}
        for heading in HEADINGS:
            below = _below(heading, options)
            rows[heading] = [record_of(option, ctx) for option in below]
        names: list[str] = []
        for of_heading in rows.values():
            names += [name for name, _ in of_heading]
        width = min(max(map(len, names)), _NAME_WIDTH)
        for heading, of_heading in rows.items():
            if not of_heading:
                continue
            # The first name is padded, so that the columns of all sections stand below one another.
            name, text = of_heading[0]
            of_heading[0] = (name.ljust(width), text)
            with formatter.section(heading):
                formatter.write_dl(of_heading, col_max=_NAME_WIDTH)
        if not shows_all:
            more = f"{plural(len(rare), 'more option')}, and all names of these: {ctx.command_path} --help-all"
            formatter.write_paragraph()
            formatter.write_text(f"An option with … may be given several times. {more}")


_NAME_WIDTH = 26
"""Columns of the names of options; a longer name has a line of its own."""


def show_all_options(context: click.Context) -> None:
    """Have the help of this context and of those below it show all options."""
    context.meta[_SHOWS_ALL] = True


def _print_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    show_all_options(context)
    click.echo(context.get_help())
    context.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show this message with all options, and exit.",
)


def _shown_options(params: list[click.Parameter]) -> list[click.Option]:
    return [param for param in params if isinstance(param, click.Option) and not param.hidden]


def _is_rare(option: click.Option) -> bool:
    name = option.opts[-1]
    return name in RARE.split() or name.startswith(_STORE_FLAGS)


def _heading_of(option: click.Option) -> tuple[str, int]:
    """Return the heading of an option, and its place below it."""
    for heading, text in HEADINGS.items():
        names = text.split()
        for name in (option.name, option.opts[-1]):
            if name in names:
                return heading, names.index(name)
    if option.opts[-1].startswith(_STORE_FLAGS):
        return "The archive", len(HEADINGS["The archive"])
    return _OTHERS, len(HEADINGS[_OTHERS])


def _below(heading: str, options: list[click.Option]) -> list[click.Option]:
    """Return the options below a heading, in order."""
    below: list[tuple[int, click.Option]] = []
    for option in options:
        its_heading, place = _heading_of(option)
        if its_heading == heading:
            below.append((place, option))
    below.sort(key=_place)
    return [option for _, option in below]


def _place(entry: tuple[int, click.Option]) -> int:
    return entry[0]


def _whole_record(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """Return all names of an option, and its help."""
    record = option.get_help_record(ctx)
    assert record is not None  # noqa: S101 (only a hidden option has none)
    return record


_REPEATABLE = re.compile(r"\[repeatable(, )?")


def _short_record(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """Return one short and one long name of an option, and its help. Dots stand for `[repeatable]`."""
    names, text = _whole_record(option, ctx)
    short: list[str] = []
    long: list[str] = []
    for name in option.opts:
        if name.startswith("--"):
            long.append(name)
        else:
            short.append(name)
    shown = ", ".join([*short[:1], *long[:1]])
    # The record has the metavar behind the last name; behind " / " it has the name that turns a flag off.
    metavar = names.partition(long[-1])[2].partition(" / ")[0]
    dots = " …" if _REPEATABLE.search(text) else ""
    # Of notes in brackets that were `[repeatable]` alone, nothing is left between the brackets.
    text = _REPEATABLE.sub("[", text).replace(" []", "").replace("[]", "").rstrip()
    return shown + metavar + dots, text
