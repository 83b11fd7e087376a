"""infra/man/*.1: a manual page of kbackup, and one of each command with its subcommands, from click's own objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

import click

from kbackup.cli import COMMANDS, GROUPS, cli
from kbackup.cli.common.command_context import EXIT_CODES
from scripts.docs.commands import all_commands, subcommands

_FILES = (
    ("./kbackup.toml", "The configuration, unless --config or KBACKUP_CONFIG names another file."),
    ("~/.cache/kbackup", "Metadata of archives that were read; XDG_CACHE_HOME moves it."),
)


def manual_pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    pages = {"kbackup.1": _page("kbackup", _main_page())}
    commands = all_commands()
    for name, (_, short) in COMMANDS.items():
        pages[f"kbackup-{name}.1"] = _page(f"kbackup-{name}", command_page(name, short, commands[name]))
    return pages


def _page(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f'.TH "{_escaped(title.upper())}" 1 "" "kbackup" "kbackup"', *lines]) + "\n"


def _main_page() -> Iterator[str]:
    yield from _head("kbackup", cli.help or "")
    yield from (".SH SYNOPSIS", ".B kbackup", r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]")
    yield ".SH COMMANDS"
    for title, names in GROUPS.items():
        yield f".SS {title}"
        for name in names:
            yield from (".TP", rf"\fBkbackup\-{_escaped(name)}\fR(1)", _line(COMMANDS[name][1]))
    yield ".SH OPTIONS"
    yield from _options(cli)
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", f".B {code}", _line(meaning))
    yield ".SH FILES"
    for file, meaning in _FILES:
        yield from (".TP", f".I {_escaped(file)}", _line(meaning))


def command_page(name: str, short: str, command: click.Command) -> Iterator[str]:
    """Yield the lines of a command's page below its title."""
    yield from _head(f"kbackup-{name}", short)
    yield ".SH SYNOPSIS"
    below = subcommands(command)
    for path, part in {name: command, **{f"{name} {key}": value for key, value in below.items()}}.items():
        if part is not command or not below:
            arguments = [param for param in part.params if isinstance(param, click.Argument)]
            metavars = [_escaped(param.make_metavar(click.Context(part))) for param in arguments]
            usage = " ".join([r"[\fIOPTIONS\fR]", *(rf"\fI{metavar}\fR" for metavar in metavars)])
            yield from (f".B kbackup {_escaped(path)}", usage, ".br")
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command)
    if not below:
        yield ".SH OPTIONS"
        yield from _options(command)
    for key, part in below.items():
        yield f'.SH "{_escaped(f"kbackup {name} {key}".upper())}"'
        yield from _paragraphs(part)
        yield from _options(part)
    yield from (".SH SEE ALSO", r"\fBkbackup\fR(1)")


def _head(name: str, short: str) -> Iterator[str]:
    yield from (".SH NAME", rf"{_escaped(name)} \- {_line(short.rstrip('.'))}")


def _paragraphs(command: click.Command) -> Iterator[str]:
    """Yield the help of a command and, after it, its example."""
    for number, text in enumerate(inspect.cleandoc(f"{command.help}\n\n{command.epilog or ''}").split("\n\n")):
        yield from ([".PP"] if number else [])
        yield _line(text)


def _options(command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name="kbackup", **cli.context_settings)
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None:
            yield from (".TP", rf"\fB{_escaped(record[0])}\fR", _line(record[1]))


def _line(text: str) -> str:
    """Return text as one line of roff that is no request."""
    escaped = _escaped(" ".join(text.split()))
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escaped(text: str) -> str:
    """Return text with the characters of roff escaped, and all but ASCII as groff names it."""
    signs = {"\\": r"\e", "-": r"\-", "'": r"\(aq", '"': r"\(dq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
    return "".join(signs.get(sign, sign if ord(sign) < 128 else rf"\[u{ord(sign):04X}]") for sign in text)
