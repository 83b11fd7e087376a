"""The options that commands share, most of them for keys of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kbackup.cli.common.frame import OPTION, FlagValues
from kbackup.config import KEYS, Key, Setting, SettingOrigin


class AliasedOption(click.Option):
    """An option that the parser also takes under `aliases`."""

    def __init__(self, *args: Any, aliases: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.aliases = tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        if self.aliases:
            parser.add_option(self, self.aliases, dest=self.name, nargs=self.nargs)


# Callbacks of options: they put a value into the `FlagValues` of the command line.


def record_key(key: Key, entry: str = "") -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that records the value of a key, or of an entry of a table."""

    def record(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        settings = context.ensure_object(FlagValues).settings
        origin = SettingOrigin(
            "flag", parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
        )
        if entry:
            settings.append(Setting(f"{key.path}.{entry}", value, origin))
        elif key.kind == "table":
            settings.extend(Setting(f"{key.path}.{name}", text, origin) for name, text in map(_pair, value))
        else:
            settings.append(Setting(key.path, _listed(key, value) if key.kind == "list" else value, origin))

    return record


def _listed(key: Key, values: tuple[str, ...]) -> list[str]:
    """Return the items of a list: one a flag. Words of a choice have no commas, so a flag may give several of them."""
    return [item for text in values for item in (text.split(",") if key.choices else [text])]


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter("expected name=value")
    return name.strip(), value


def store_flag(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets an attribute of the state, if the flag is given."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(FlagValues), name, value)

    return store


def store_file(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets a file of the state, if the flag is given."""

    def store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value:
            state = context.ensure_object(FlagValues)
            state.files = state.files._replace(**{name: value})

    return store


def record_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    """Record the keys of `--set`."""
    pairs = map(_pair, values)
    origin = SettingOrigin("flag", "--set")
    context.ensure_object(FlagValues).settings.extend(Setting(path, value, origin) for path, value in pairs)


def ignore_value(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Ignore the value: `kbackup.cli.common.frame` reads it before click does."""


# Options that set keys of the configuration, with help and defaults from the table of keys.


F = TypeVar("F", bound=Callable[..., Any])

_METAVARS = {
    "size": "SIZE",
    "duration": "DURATION",
    "time": "TIME",
    "number": "N",
    "text": "TEXT",
    "list": "NAME",
    "table": "NAME=VALUE",
    "restore.restore_point": "[N|LABEL|latest]",
}


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
    return click.option(
        *(names or _names(key)),
        path.replace(".", "_"),
        cls=AliasedOption,
        aliases=aliases,
        default=() if key.kind in ("list", "table") else None,
        multiple=key.kind in ("list", "table"),
        is_flag=key.kind == "flag",
        type=bool if key.kind == "flag" else str,
        metavar=None
        if key.kind == "flag"
        else _METAVARS.get(path) or _METAVARS.get(key.kind) or f"[{key.expected.replace(' or ', '|')}]",
        help=_help(key, help, default),
        expose_value=False,
        callback=record_key(key),
        shell_complete=lambda context, parameter, start: [w for w in key.choices if w.startswith(start)],
    )


def key_options(*paths: str) -> Callable[[F], F]:
    """Return a `key_option` for each path."""
    return options(*map(key_option, paths))


def removed_option(path: str, *names: str) -> Callable[[F], F]:
    """Return an option of the release before, hidden from help. The configuration refuses its key by name."""

    def record(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(FlagValues).settings.append(Setting(path, value, SettingOrigin("flag", names[0])))

    return click.option(*names, hidden=True, expose_value=False, callback=record)


def client_file_option(section: str) -> Callable[[F], F]:
    """Return the option `--<section>-config`."""
    return click.option(
        f"--{section}-config",
        type=click.Path(),
        metavar="FILE",
        help=f"Java client properties of the {section} cluster.",
        expose_value=False,
        callback=store_file(section),
    )


def cluster_options(section: str) -> Callable[[F], F]:
    """Return `--<section>-config` and `--bootstrap-server` for the section "source" or "target"."""
    return options(
        client_file_option(section),
        click.option(
            "--bootstrap-server",
            f"{section}_bootstrap",
            metavar="HOST:PORT",
            help=f"Address of the {section} cluster.",
            expose_value=False,
            callback=record_key(KEYS[section], "bootstrap.servers"),
        ),
    )


def _names(key: Key) -> tuple[str]:
    name = key.path.rpartition(".")[2].replace("_", "-")
    both_ways = key.kind == "flag" and not name.startswith("no-")
    return (f"--{name}/--no-{name}" if both_ways else f"--{name}",)


def _help(key: Key, text: str | None, default: str | None) -> str:
    notes = ["repeatable"] if key.kind in ("list", "table") else []
    default = default or ("" if key.default is False else key.default_text)
    notes += [f"default {default}"] if default else []
    return f"{text or key.doc} [{', '.join(notes)}]" if notes else text or key.doc


# The options that select a restore point and times: one name for each, in every command.


_POINT = ("-b", "--restore-point")
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
        *_POINT,
        "restore_point",
        cls=AliasedOption,
        aliases=_POINT_ALIASES,
        default=default,
        metavar=metavar,
        help=help,
        **attributes,
    )


def to_time_option(help: str = KEYS["restore.to_time"].doc) -> Callable[[F], F]:
    """Return the option `--to-time`, whose value a command gets as text."""
    return click.option("--to-time", "to_time", cls=AliasedOption, aliases=_TIME_ALIASES, metavar="TIME", help=help)


point_key_option = key_option("restore.restore_point", *_POINT, aliases=_POINT_ALIASES)
"""`--restore-point`, into the configuration."""

time_key_options = options(key_option("restore.to_time", aliases=_TIME_ALIASES), key_option("restore.from_time"))
"""`--to-time` and `--from-time`, into the configuration."""


# The options that commands share.
#
# None of them becomes a parameter of a command: their values go to `FlagValues`, and a command reads the merged
# configuration.


def _hidden_option(*names: str, callback: Callable[..., None], **attributes: Any) -> Callable[[F], F]:
    """Return an option whose value goes to `FlagValues` and not to the command."""
    return click.option(*names, expose_value=False, callback=callback, **attributes)


common_options = options(
    _hidden_option(
        "--config",
        callback=store_file("config"),
        type=click.Path(),
        metavar="FILE",
        help="Configuration file. [default ./kbackup.toml]",
    ),
    _hidden_option(
        "--set",
        "set_",
        callback=record_settings,
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set any key. [repeatable]",
    ),
    _hidden_option(
        "--json",
        callback=store_flag("json"),
        is_flag=True,
        help="Print one JSON document on stdout; --json=line prints it on one line.",
    ),
    _hidden_option("-q", "--quiet", callback=store_flag("quiet"), is_flag=True, help="Print no notes and no progress."),
    _hidden_option(
        "-v", "--verbose", callback=store_flag("verbose"), count=True, help="Log more; give it twice for still more."
    ),
    _hidden_option("--debug", callback=store_flag("debug"), is_flag=True, help="Show tracebacks and log everything."),
    _hidden_option(
        OPTION,
        callback=ignore_value,
        type=click.Path(),
        metavar="FILE",
        help="Write metrics for node_exporter's textfile collector, also after an error.",
    ),
)
archive_option = options(
    key_option("archive", "-a", "--archive"),
    _hidden_option(
        "--accept-rollback",
        callback=store_flag("accept_rollback"),
        is_flag=True,
        help="Accept an archive whose newest catalogs are missing.",
    ),
)
archive_argument = click.argument(
    "place", metavar="[ARCHIVE]", required=False, expose_value=False, callback=record_key(KEYS["archive"])
)
source_options = cluster_options("source")
target_options = cluster_options("target")
s3_options = options(
    key_option("s3.endpoint_url", "--s3-endpoint-url"),
    key_option("s3.region", "--s3-region"),
    key_option("s3.profile", "--s3-profile"),
    key_option("s3.path_style", "--s3-path-style/--no-s3-path-style"),
    key_option("encryption.key", "--encryption-key"),
)
spark_options = key_option("spark.master")
cache_option = key_option(
    "metadata_cache", "--cache/--no-cache", help="Keep the archive's metadata for the next command."
)
state_options = options(common_options, archive_option, point_option(default="latest"), to_time_option(), cache_option)
"""Select the state of an archive to read."""
