"""The options that commands share, most of them for keys of the configuration, and command lines that set such keys."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbackup.cli.common.command_context import (
    METRICS_FILE,
    CommandContext,
    FlagValues,
    load_config,
    pass_command_context,
)
from kbackup.cli.common.output import Reporter
from kbackup.config import KEYS, Key, Setting, SettingOrigin, exposes_secret
from kbackup.config.values import escape_references
from kbackup.config.windows import in_zone, parse_duration
from kbackup.errors import UsageError
from kbackup.store.base import StoreKind
from kbackup.store.registry import KINDS
from kbackup.util.text import kbackup_command, shell_line

if TYPE_CHECKING:
    from kbackup.archive.reader import Archive

F = TypeVar("F", bound=Callable[..., Any])
Callback = Callable[[click.Context, click.Parameter, Any], None]


class AliasedOption(click.Option):
    """An option that the parser also takes under `aliases`."""

    def __init__(self, *args: Any, aliases: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.aliases = tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        if self.aliases:
            parser.add_option(self, self.aliases, dest=self.name, nargs=self.nargs)


_LONGEST = 100 * 365 * 86_400.0
"""Longest duration in seconds: no archive is older."""


class Duration(click.ParamType[timedelta]):
    name = "duration"

    def convert(
        self, value: str | timedelta, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            seconds = parse_duration(value)
        except ValueError:
            self.fail(f"{value} is not a duration: give one such as 30d or 12h", parameter, context)
        return timedelta(seconds=min(seconds, _LONGEST))


# Callbacks of options: they put a value into the `FlagValues` of the command line.


def record_key(key: Key, entry: str = "") -> Callback:
    """Return a callback that records the value of a key, or of an entry of a table."""

    def record(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        settings = context.ensure_object(FlagValues).settings
        flag = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
        origin = SettingOrigin("flag", flag)
        if entry:
            settings.append(Setting(f"{key.path}.{entry}", value, origin))
        elif key.kind == "table":
            for name, text in map(_pair, value):
                _check_one_sign(f"{key.path}.{name}", text)
                settings.append(Setting(f"{key.path}.{name}", text, origin))
        else:
            if key.kind == "time":
                value = zoned(context, parameter, value)
            if key.kind == "list" and key.choices:  # words of a choice have no commas: a flag may give several of them
                value = ",".join(value).split(",")
            settings.append(Setting(key.path, list(value) if key.kind == "list" else value, origin))

    return record


def zoned(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a time in the zone of `--tz`, which is read first. A callback of options that take a time."""
    zone = context.ensure_object(FlagValues).time_zone
    if value is None or zone is None:
        return value
    try:
        return in_zone(value, zone)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter("expected name=value")
    return name.strip(), value


def _check_one_sign(path: str, text: str) -> None:
    """Refuse a new name of a group with '=' in it: the '=' may as well belong to the old name."""
    if path.startswith("restore.map_group.") and "=" in text:
        old = path.removeprefix("restore.map_group.")
        raise click.BadParameter(
            f"{old}={text} has two meanings: a group's name may hold '='; write it as TOML, for instance "
            f'--set \'restore.map_group={{"{old}" = "{text}"}}\''
        )


def store(name: str) -> Callback:
    """Return a callback that sets an attribute of the state, if the flag is given."""

    def set_attribute(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(FlagValues), name, value)

    return set_attribute


def record_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    origin = SettingOrigin("flag", "--set")
    for path, text in map(_pair, values):
        _check_one_sign(path, text)
        context.ensure_object(FlagValues).settings.append(Setting(path, text, origin))


def hidden_value(*names: str, callback: Callable[..., None], **attributes: Any) -> Callable[[F], F]:
    """Return an option whose value goes to `FlagValues` and not to the command."""
    return click.option(*names, expose_value=False, callback=callback, **attributes)


# The names of an archive, for a shell that completes a word.


_COMPLETION_SECONDS = 1.0


def archived(kind: str, *words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of `words`, or of the archive's "topics", "groups", "subjects", "labels" or "points"."""

    def complete(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
        return [word for word in words or _archived_names(kind, context) if word.startswith(start)]

    return complete


def _archived_names(kind: str, context: click.Context) -> list[str]:
    """Return names of the archive of the command line or of kbackup.toml, by the cache of metadata; none after an
    error or a second. Prints nothing."""
    logging.disable(logging.CRITICAL)
    state = context.ensure_object(FlagValues)
    names: list[str] = []

    def read() -> None:
        # An error while a word is completed would be printed into the line that is typed.
        with suppress(Exception):
            from kbackup.archive.reader import open_archive
            from kbackup.cli.common.session import cached_archive_store

            loaded = load_config(state)
            if (loaded.config.encryption.key or "").startswith("command:"):
                return  # it may ask for a password
            store = cached_archive_store(CommandContext(loaded, Reporter()))
            names.extend(_names_in(open_archive(store), kind))

    # A thread that hangs on a store can't be stopped, but the process that completes ends without it.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_COMPLETION_SECONDS)
    return names


def _names_in(archive: Archive, kind: str) -> list[str]:
    """Return the names of an archive that complete a word: topics, groups and subjects of the newest restore point."""
    from kbackup.archive.catalog.labels import is_label

    if kind == "labels":
        return list(archive.state.labels)
    if kind == "points":
        labels = [label for label in archive.state.labels if is_label(label)]
        numbers = [str(point.number) for point in archive.restore_points]
        return [*labels, "latest", *numbers]
    head = archive.head
    if head is None:
        return []
    if kind == "topics":
        return [topic.name for topic in head.topics]
    if kind == "groups":
        return [group.group for group in archive.groups(head).groups]
    held = archive.schemas(head) if kind == "subjects" else None
    if held is None:
        return []
    return sorted({version.subject for version in held.versions})


# Options that set keys of the configuration, with help and defaults from the table of keys.


_METAVARS = {
    **{"size": "SIZE", "rate": "RATE", "duration": "DURATION", "time": "TIME", "number": "N", "text": "TEXT"},
    **{"list": "NAME", "table": "NAME=VALUE", "restore.restore_point": "[N|LABEL|latest]"},
}


_ARCHIVED = {"topics": "topics", "groups": "groups", "restore-point": "points"}


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator made of many, in the order of the help."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def key_option(
    path: str, *names: str, help: str | None = None, default: str | None = None, aliases: Sequence[str] = ()
) -> Callable[[F], F]:
    """Return an option that sets the key `path`, with help and default from the table of keys.

    Its name is `--<last part of the path>`, unless `names` are given. `default` replaces the default in the help, for
    commands with a default of their own. Lists and tables take one item for each use of the option. `aliases` are
    former names that keep working.
    """
    key = KEYS[path]
    is_flag, is_multiple = key.kind == "flag", key.kind in ("list", "table")
    name = path.rpartition(".")[2].replace("_", "-")
    # A flag has a second name that turns it off: the file or the environment may have turned it on.
    both_ways = is_flag and not name.startswith("no-")
    usual_name = f"--{name}/--no-{name}" if both_ways else f"--{name}"
    if not default and key.default is not False:
        default = key.default_text
    notes = []
    if is_multiple:
        notes.append("repeatable")
    if default:
        notes.append(f"default {default}")
    return hidden_value(
        *(names or (usual_name,)),
        path.replace(".", "_"),
        callback=record_key(key),
        cls=AliasedOption,
        aliases=aliases,
        default=() if is_multiple else None,
        multiple=is_multiple,
        is_flag=is_flag,
        type=bool if is_flag else str,
        metavar=_metavar(key),
        help=f"{help or key.doc} [{', '.join(notes)}]" if notes else help or key.doc,
        shell_complete=archived(_ARCHIVED.get(name.removeprefix("exclude-"), ""), *key.choices),
    )


def _metavar(key: Key) -> str | None:
    if key.kind == "flag":
        return None
    return _METAVARS.get(key.path) or _METAVARS.get(key.kind) or f"[{key.expected.replace(' or ', '|')}]"


def key_options(*paths: str) -> Callable[[F], F]:
    return options(*map(key_option, paths))


def name_options(*paths: str) -> Callable[[F], F]:
    """Return the options that select names and exclude some: -t, --topic and --exclude-topic for "backup.topics"."""
    decorators = []
    for path in paths:
        section, _, plural = path.partition(".")
        names = (f"-{plural[0]}", f"--{plural[:-1]}", f"--{plural}")
        excluding = (f"--exclude-{plural[:-1]}", f"--exclude-{plural}")
        decorators += [key_option(path, *names), key_option(f"{section}.exclude_{plural}", *excluding)]
    return options(*decorators)


def removed_option(path: str, *names: str) -> Callable[[F], F]:
    """Return an option of the release before, hidden from help. The configuration refuses its key by name."""

    def record(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(FlagValues).settings.append(Setting(path, value, SettingOrigin("flag", names[0])))

    return hidden_value(*names, hidden=True, callback=record)


def client_file_option(section: str) -> Callable[[F], F]:
    """Return the option `--<section>-config`."""
    text = f"Java client properties of the {section} cluster."
    return hidden_value(
        f"--{section}-config", callback=store(f"{section}_file"), type=click.Path(), metavar="FILE", help=text
    )


def bootstrap_option(section: str) -> Callable[[F], F]:
    """Return `--bootstrap-server` for the section "source" or "target"."""
    return hidden_value(
        "--bootstrap-server",
        f"{section}_bootstrap",
        callback=record_key(KEYS[section], "bootstrap.servers"),
        metavar="HOST:PORT",
        help=f"Address of the {section} cluster.",
    )


# The options that select a restore point and times: one name for each, in every command.


_POINT_ALIASES = ("--backup",)
_TIME_ALIASES = ("--at",)


def point_option(
    help: str = KEYS["restore.restore_point"].doc,
    *,
    default: str | None = None,
    metavar: str = "[N|LABEL|latest]",
    show_default: bool = True,
) -> Callable[[F], F]:
    """Return the option `--restore-point`, whose value a command gets as text."""
    attributes: dict[str, Any] = {"show_default": show_default} if default is not None else {}
    return click.option(
        *("-b", "--restore-point", "restore_point"),
        cls=AliasedOption,
        aliases=_POINT_ALIASES,
        default=default,
        metavar=metavar,
        help=help,
        shell_complete=archived("points"),
        **attributes,
    )


tz_option = hidden_value(
    "--tz",
    callback=store("time_zone"),
    is_eager=True,
    metavar="ZONE",
    help="Time zone of times that are given without one, such as Europe/Berlin.",
)


def to_time_option(help: str = KEYS["restore.to_time"].doc) -> Callable[[F], F]:
    """Return the options `--to-time`, whose value a command gets as text, and `--tz`."""
    attributes: dict[str, Any] = {"cls": AliasedOption, "aliases": _TIME_ALIASES, "callback": zoned}
    return options(click.option("--to-time", "to_time", metavar="TIME", help=help, **attributes), tz_option)


point_key_option = key_option("restore.restore_point", "-b", "--restore-point", aliases=_POINT_ALIASES)
"""`--restore-point`, into the configuration."""

time_key_options = options(
    key_option("restore.to_time", aliases=_TIME_ALIASES), key_option("restore.from_time"), tz_option
)
"""`--to-time` and `--from-time`, into the configuration, in the zone of `--tz`."""


# The options that commands share. None of them becomes a parameter of a command: their values go to `FlagValues`, and
# a command reads the merged configuration.


def _flag(*names: str, help: str) -> Callable[[F], F]:
    """Return an option that sets the attribute of its name in `FlagValues`."""
    attribute = names[-1].removeprefix("--").replace("-", "_")
    return hidden_value(*names, callback=store(attribute), is_flag=True, help=help)


common_options = options(
    hidden_value(
        "--config",
        callback=store("config_file"),
        type=click.Path(),
        metavar="FILE",
        help="Configuration file. [default ./kbackup.toml]",
    ),
    hidden_value(
        *("--set", "set_"),
        callback=record_settings,
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set any key. [repeatable]",
    ),
    _flag("--json", help="Print one JSON document on stdout; --json=line prints it on one line."),
    _flag("--wide", help="Print all columns of a table and whole names, however narrow the terminal is."),
    _flag("-q", "--quiet", help="Print no notes and no progress."),
    hidden_value(
        "-v", "--verbose", callback=store("verbose"), count=True, help="Log more; give it twice for still more."
    ),
    _flag("--debug", help="Show tracebacks and log everything."),
    hidden_value(
        METRICS_FILE,
        callback=lambda context, parameter, value: None,  # `requested_metrics_file` reads it before click does
        type=click.Path(),
        metavar="FILE",
        help="Write metrics for node_exporter's textfile collector, also after an error.",
    ),
)
archive_option = options(
    key_option("archive", "-a", "--archive"),
    _flag("--accept-rollback", help="Accept an archive whose newest catalogs are missing."),
)
archive_argument = click.argument(
    "place", metavar="[ARCHIVE]", required=False, expose_value=False, callback=record_key(KEYS["archive"])
)
source_options = options(client_file_option("source"), bootstrap_option("source"))
target_options = options(client_file_option("target"), bootstrap_option("target"))


def store_flags(prefix: str = "") -> Iterator[tuple[StoreKind, str, str]]:
    """Yield each setting of a store that is a flag, with its kind and its flag, which begins with `prefix`."""
    for kind in KINDS.values():
        for name in kind.flags:
            flag = f"{prefix}{kind.section}-{name.replace('_', '-')}"
            yield kind, name, f"--{flag}/--no-{flag}" if _key_of(kind, name).kind == "flag" else f"--{flag}"


def second_store_options(body: F) -> F:
    """Add the flags of a second store; the command gets them as `to_<section>_<name>`, None where one is not given."""
    return options(
        *(
            click.option(
                *(flag, f"to_{kind.section}_{name}"),
                default=None,
                metavar=_metavar(_key_of(kind, name)),
                help=f"As --{kind.section}-{name.replace('_', '-')}, for DEST alone.",
            )
            for kind, name, flag in store_flags("to-")
        )
    )(body)


def _key_of(kind: StoreKind, name: str) -> Key:
    return KEYS[f"{kind.section}.{name}"]


store_options = options(
    *(key_option(f"{kind.section}.{name}", flag) for kind, name, flag in store_flags()),
    key_option("encryption.key", "--encryption-key"),
)
spark_options = key_option("spark.master")
rate_option = key_option("limit_rate")
cache_option = key_option(
    "metadata_cache", "--cache/--no-cache", help="Keep the archive's metadata for the next command."
)
state_options = options(point_option(default="latest"), to_time_option(), cache_option)
"""Select the state of an archive to read."""
bucket_options = options(archive_option, store_options, common_options)
"""What every command on an archive takes, after its own options."""
count_option = click.option(
    "--count", is_flag=True, help="Read the records in a window to count them; otherwise counts are upper bounds."
)
confirm_option = click.option(
    "--confirm", is_flag=True, help="Change the archive. Without it, the command only shows the plan."
)


def archive_command(
    name: str,
    *own: Callable[[Any], Any],
    argument: bool = False,
    spark: bool = False,
    group: click.Group | None = None,
    example: str = "",
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Return a decorator that makes a function a command on an archive; its first argument is a `CommandContext`.

    The command has its `own` arguments and options and those that such commands share. `argument`: the archive may also
    be an argument. `spark`: the command may start Spark. `example` is a line at the end of its help."""

    def decorate(body: Callable[..., int | None]) -> click.Command:
        first, last = (archive_argument,) if argument else (), (spark_options,) if spark else ()
        function = options(*first, *own, *last, bucket_options)(pass_command_context(body))
        made = group.command if group is not None else click.command
        return made(name, epilog=f"Example: {example}" if example else None)(function)

    return decorate


# Command lines to copy: printable, quoted for POSIX shells.


def command_line(command: click.Command, settings: Mapping[str, object], *flags: str) -> str:
    """Return the command line of `command` that sets `settings`, values by path of the key, and gives `flags`.

    Raises `UsageError` for a value that is not printable."""
    names = {option.name: option.opts for option in command.params}
    words = ["kbackup", command.name or "", *flags]
    for path, value in settings.items():
        long = next(name for name in names[path.replace(".", "_")] if name.startswith("--"))
        words += _words(KEYS[path], long, value)
    return shell_line(*words)


def _words(key: Key, option: str, value: object) -> Iterator[str]:
    """Yield the words that set a key: one option an item of a list and an entry of a table."""
    if isinstance(value, bool):
        yield from [option] if value else []
    elif isinstance(value, Mapping):
        for name, text in value.items():
            # as NAME=VALUE, or as TOML where NAME does not fit into that
            fits = name and name == name.strip() and "=" not in name and escape_references(name) == name
            if fits and (name + text).isprintable():
                yield from _option_words(option, f"{name}={escape_references(text)}")
            else:
                yield from ("--set", f"{key.path}={{{_toml(name)} = {_toml(text)}}}")
    else:
        for item in value if isinstance(value, list | tuple) else [value]:
            yield from _option_words(option, escape_references(str(item)))


def _option_words(option: str, text: str) -> list[str]:
    if not text.isprintable():
        raise UsageError(
            f"{option} has a character that can't be shown", "escape it in a /regex/ or a string of jq: \\u202e"
        )
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def _toml(text: str) -> str:
    """Return a TOML string of printable characters that holds no reference to a variable or a file."""
    plain = (sign if sign.isprintable() and sign not in '"\\\\$' else f"\\U{ord(sign):08x}" for sign in text)
    return f'"{"".join(plain)}"'


def own_command(*, add: str = "", drop: Collection[str] = ()) -> str:
    """Return this run's command line with the option `add`, or without the options `drop`, for messages.

    Where it holds a secret, all arguments but the command are dots."""
    context = click.get_current_context()
    state = context.ensure_object(FlagValues)
    added = [add] if add else []
    if any(exposes_secret(setting.path, setting.value) for setting in state.settings):
        return " ".join([context.command_path, "…", *added])
    return kbackup_command(*(word for word in state.arguments if word not in drop), *added)
