"""The options that commands share, most of them for keys of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import click

from kbackup.cli.common.callbacks import record_key, record_settings, store, time_zone, zoned
from kbackup.cli.common.command_context import METRICS_FILE, FlagValues, pass_command_context
from kbackup.cli.common.completion import archived
from kbackup.cli.common.help import SectionedCommand
from kbackup.config import KEYS, Key, Setting, SettingOrigin
from kbackup.config.windows import parse_duration
from kbackup.store.base import StoreKind
from kbackup.store.registry import KINDS

F = TypeVar("F", bound=Callable[..., Any])


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


def hidden_value(*names: str, callback: Callable[..., None], **attributes: Any) -> Callable[[F], F]:
    """Return an option whose value goes to `FlagValues` and not to the command."""
    return click.option(*names, expose_value=False, callback=callback, **attributes)


# Options that set keys of the configuration, with help and defaults from the table of keys.


_METAVARS = {
    "size": "SIZE",
    "rate": "RATE",
    "duration": "DURATION",
    "time": "TIME",
    "number": "N",
    "text": "TEXT",
    "list": "NAME",
    "table": "NAME=VALUE",
    "restore.restore_point": "N|LABEL|latest",
    "restore.range": "RANGE",
    "restore.skip": "RANGE",
    "restore.where": "JQ",
    "restore.transform": "FILE.py:FUNCTION",
    "export.transform": "FILE.py:FUNCTION",
    "restore.map_regex": "RULE",
    "restore.restore_id": "ID",
    "archive": "URL",
    "encryption.key": "KEY",
    "schema_registry.url": "URL",
    "target_schema_registry.url": "URL",
    "restore.state": "URL",
}
"""What stands for the value in the help, by the kind of the key or by its path."""
_ARCHIVED = {"topics": "topics", "groups": "groups", "restore-point": "points"}
"""The kind of archived names that complete the value of an option, by its name."""


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
    is_flag = key.kind == "flag"
    is_multiple = key.kind in ("list", "table")
    name = path.rpartition(".")[2].replace("_", "-")
    kind_of_names = _ARCHIVED.get(name.removeprefix("exclude-"), "")
    if not names:
        names = (_usual_name(name, is_flag),)
    # The default is what tells that the option was not given: the configuration has the key's own.
    nothing_given = () if is_multiple else None
    value_type = bool if is_flag else str
    return hidden_value(
        *names,
        path.replace(".", "_"),
        callback=record_key(key),
        cls=AliasedOption,
        aliases=aliases,
        default=nothing_given,
        multiple=is_multiple,
        is_flag=is_flag,
        type=value_type,
        metavar=_metavar(key),
        help=_help(key, help, default),
        shell_complete=archived(kind_of_names, *key.choices),
    )


def _usual_name(name: str, is_flag: bool) -> str:
    """Return the name of an option; a flag has a second name that turns it off."""
    # The file or the environment may have turned a flag on.
    if is_flag and not name.startswith("no-"):
        return f"--{name}/--no-{name}"
    return f"--{name}"


def _help(key: Key, help: str | None, default: str | None) -> str:
    notes = []
    if key.kind in ("list", "table"):
        notes.append("repeatable")
    if not default and key.default is not False:
        default = key.default_text
    if default:
        notes.append(f"default {default}")
    text = help or key.doc
    return f"{text} [{', '.join(notes)}]" if notes else text


def _metavar(key: Key) -> str | None:
    if key.kind == "flag":
        return None
    choices = key.expected.replace(" or ", "|")
    return _METAVARS.get(key.path) or _METAVARS.get(key.kind) or f"[{choices}]"


def key_options(*paths: str) -> Callable[[F], F]:
    return options(*[key_option(path) for path in paths])


def name_options(*paths: str) -> Callable[[F], F]:
    """Return the options that select names and exclude some: -t, --topic and --exclude-topic for "backup.topics"."""
    decorators = []
    for path in paths:
        section, _, plural = path.partition(".")
        names = (f"-{plural[0]}", f"--{plural[:-1]}", f"--{plural}")
        excluding = (f"--exclude-{plural[:-1]}", f"--exclude-{plural}")
        decorators.append(key_option(path, *names))
        decorators.append(key_option(f"{section}.exclude_{plural}", *excluding))
    return options(*decorators)


def removed_option(path: str, *names: str) -> Callable[[F], F]:
    """Return an option of the release before, hidden from help. The configuration refuses its key by name."""

    def record(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            setting = Setting(path, value, SettingOrigin("flag", names[0]))
            context.ensure_object(FlagValues).settings.append(setting)

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


def _record_compared_address(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Record the address of the cluster that `--against` names, which is read first. A callback."""
    section = context.params.get("against") or "target"
    record_key(KEYS[section], "bootstrap.servers")(context, parameter, value)


compared_options = options(
    click.option(
        "--against",
        type=click.Choice(["target", "source"]),
        is_eager=True,
        help="Compare this cluster's records with the archive.",
    ),
    client_file_option("target"),
    client_file_option("source"),
    hidden_value(
        "--bootstrap-server",
        "compared_bootstrap",
        callback=_record_compared_address,
        metavar="HOST:PORT",
        help="Address of the cluster that --against names.",
    ),
)
"""`--against`, and how to reach that cluster. The command gets the first one alone."""


# The options that select a restore point and times: one name for each, in every command.


_POINT_ALIASES = ("--backup",)
_TIME_ALIASES = ("--at",)


def point_option(
    help: str = KEYS["restore.restore_point"].doc,
    *,
    default: str | None = None,
    metavar: str = "N|LABEL|latest",
    show_default: bool = True,
) -> Callable[[F], F]:
    """Return the option `--restore-point`, whose value a command gets as text."""
    attributes: dict[str, Any] = {}
    if default is not None:
        attributes["show_default"] = show_default
    return click.option(
        "-b",
        "--restore-point",
        "restore_point",
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
    callback=time_zone,
    is_eager=True,
    metavar="ZONE",
    help="Time zone of times without one, such as Europe/Berlin. Unset: that of this machine.",
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


def _ignore(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Do nothing with the value of an option. A callback."""


common_options = options(
    hidden_value(
        "--config",
        callback=store("config_file"),
        type=click.Path(),
        metavar="FILE",
        help="Configuration file. [default ./kbackup.toml]",
    ),
    hidden_value(
        "--set",
        "set_",
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
        # `requested_metrics_file` reads it before click does: a command line that click refuses is counted, too.
        callback=_ignore,
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


class _StoreFlag(NamedTuple):
    """A setting of a kind of store that is a flag."""

    kind: StoreKind
    setting: str

    @property
    def name(self) -> str:
        """The name of the flag, without hyphens before it."""
        return f"{self.kind.section}-{self.setting.replace('_', '-')}"

    @property
    def path(self) -> str:
        """The path of the key that the flag sets."""
        return f"{self.kind.section}.{self.setting}"

    def option(self, prefix: str = "") -> str:
        """Return the option, which begins with `prefix`."""
        flag = f"{prefix}{self.name}"
        return f"--{flag}/--no-{flag}" if KEYS[self.path].kind == "flag" else f"--{flag}"


def _store_flags() -> list[_StoreFlag]:
    flags: list[_StoreFlag] = []
    for kind in KINDS.values():
        flags += [_StoreFlag(kind, setting) for setting in kind.flags]
    return flags


_STORE_FLAGS = _store_flags()


def second_store_options(body: F) -> F:
    """Add the flags of a second store; the command gets them as `to_<section>_<name>`, None for a flag not given."""
    added = []
    for flag in _STORE_FLAGS:
        parameter = f"to_{flag.kind.section}_{flag.setting}"
        metavar = _metavar(KEYS[flag.path])
        text = f"As --{flag.name}, for DEST alone."
        added.append(click.option(flag.option("to-"), parameter, default=None, metavar=metavar, help=text))
    return options(*added)(body)


_options_of_stores = [key_option(flag.path, flag.option()) for flag in _STORE_FLAGS]
store_options = options(*_options_of_stores, key_option("encryption.key", "--encryption-key"))
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

    The command has its `own` arguments and options, and the options that all such commands share. With `argument`, the
    archive may also be an argument; with `spark`, the command may start Spark. `example` is a line at the end of its
    help."""

    # In the order of the help: the command's own options come before the ones that all commands have.
    decorators: list[Callable[[Any], Any]] = []
    if argument:
        decorators.append(archive_argument)
    decorators += own
    if spark:
        decorators.append(spark_options)
    decorators.append(bucket_options)
    epilog = f"Example: {example}" if example else None

    def decorate(body: Callable[..., int | None]) -> click.Command:
        with_context = pass_command_context(body)
        with_options = options(*decorators)(with_context)
        if group is not None:
            return group.command(name, cls=SectionedCommand, epilog=epilog)(with_options)
        return click.command(name, cls=SectionedCommand, epilog=epilog)(with_options)

    return decorate
