"""The options that commands share. None of them becomes a parameter: what they say is collected in `State`,
so a command reads the merged configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kbackup.cli.common.frame import State
from kbackup.cli.common.metrics_file import OPTION
from kbackup.config import KEYS, Key, Origin, Setting

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

_METAVARS = {
    "size": "SIZE",
    "duration": "DURATION",
    "time": "TIME",
    "number": "N",
    "text": "TEXT",
    "list": "NAME",
    "table": "NAME=VALUE",
    "restore.backup": "[N|LABEL|latest]",
}


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator of many; the first stands first in the help."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def key_option(
    path: str, *names: str, help: str | None = None, default: str | None = None
) -> Callable[[F], F]:
    """An option that sets the key `path`, with its help and default from the table of keys. `default` is what the help
    says of a command that has a default of its own.

    It is called `--<last part>` unless `names` say otherwise. Lists and tables are given one item a time.
    """
    key = KEYS[path]
    return click.option(
        *(names or _names(key)),
        path.replace(".", "_"),
        default=() if key.kind in ("list", "table") else None,
        multiple=key.kind in ("list", "table"),
        is_flag=key.kind == "flag",
        type=bool if key.kind == "flag" else str,
        metavar=None
        if key.kind == "flag"
        else _METAVARS.get(path) or _METAVARS.get(key.kind) or f"[{key.expected.replace(' or ', '|')}]",
        help=_help(key, help, default),
        expose_value=False,
        callback=_record(key),
    )


def key_options(*paths: str) -> Callable[[F], F]:
    """`key_option` for each path."""
    return options(*map(key_option, paths))


def client_file_option(section: str) -> Callable[[F], F]:
    """`--<section>-config`"""
    return click.option(
        f"--{section}-config",
        metavar="FILE",
        help=f"Java client properties of the {section} cluster.",
        expose_value=False,
        callback=_store_file(section),
    )


def cluster_options(section: str) -> Callable[[F], F]:
    """`--<section>-config` and `--bootstrap-server` for the section "source" or "target"."""
    return options(
        client_file_option(section),
        click.option(
            "--bootstrap-server",
            f"{section}_bootstrap",
            metavar="HOST:PORT",
            help=f"Address of the {section} cluster.",
            expose_value=False,
            callback=_record(KEYS[section], "bootstrap.servers"),
        ),
    )


def _names(key: Key) -> tuple[str]:
    name = key.path.rpartition(".")[2].replace("_", "-")
    both_ways = key.kind == "flag" and not name.startswith("no-")
    return (f"--{name}/--no-{name}" if both_ways else f"--{name}",)


def _help(key: Key, text: str | None, default: str | None) -> str:
    notes = ["repeatable"] if key.kind in ("list", "table") else []
    default = default or key.default_text
    notes += [f"default {default}"] if default else []
    return f"{text or key.doc} [{', '.join(notes)}]" if notes else text or key.doc


def _record(key: Key, entry: str = "") -> Callable[[click.Context, click.Parameter, Any], None]:
    def record(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        settings = context.ensure_object(State).settings
        origin = Origin(
            "flag",
            parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name,
        )
        if entry:
            settings.append(Setting(f"{key.path}.{entry}", value, origin))
        elif key.kind == "table":
            settings.extend(Setting(f"{key.path}.{name}", text, origin) for name, text in map(_pair, value))
        else:
            settings.append(Setting(key.path, _listed(key, value) if key.kind == "list" else value, origin))

    return record


def _listed(key: Key, values: tuple[str, ...]) -> list[str]:
    """One item a flag; a word of a choice has no comma in it, so that they may as well be given at once."""
    return [item for text in values for item in (text.split(",") if key.choices else [text])]


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter("it takes name=value")
    return name.strip(), value


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(State), name, value)

    return store


def _store_file(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value:
            state = context.ensure_object(State)
            state.files = state.files._replace(**{name: value})

    return store


def _set(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    pairs = map(_pair, values)
    origin = Origin("flag", "--set")
    context.ensure_object(State).settings.extend(Setting(path, value, origin) for path, value in pairs)


def _read_before(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """`kbackup.cli.common.metrics_file` has read it by now."""


def _hidden_option(*names: str, callback: Callable[..., None], **attributes: Any) -> Callable[[F], F]:
    """An option whose value goes to `State` and not to the command."""
    return click.option(*names, expose_value=False, callback=callback, **attributes)


common_options = options(
    _hidden_option(
        "--config",
        callback=_store_file("config"),
        metavar="FILE",
        help="Configuration file. [default ./kbackup.toml]",
    ),
    _hidden_option(
        "--set",
        "set_",
        callback=_set,
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set any key. [repeatable]",
    ),
    _hidden_option(
        "--json", callback=_store("json"), is_flag=True, help="Print one JSON document on stdout."
    ),
    _hidden_option(
        "-q", "--quiet", callback=_store("quiet"), is_flag=True, help="Print no notes and no progress."
    ),
    _hidden_option(
        "-v",
        "--verbose",
        callback=_store("verbose"),
        count=True,
        help="Log more; give it twice for still more.",
    ),
    _hidden_option(
        "--debug", callback=_store("debug"), is_flag=True, help="Show tracebacks and log everything."
    ),
    _hidden_option(
        OPTION,
        callback=_read_before,
        metavar="FILE",
        help="Write metrics for node_exporter's textfile collector, also after an error.",
    ),
)
archive_option = options(
    key_option("archive", "-a", "--archive"),
    _hidden_option(
        "--accept-rollback",
        callback=_store("accept_rollback"),
        is_flag=True,
        help="Accept an archive whose newest catalogs are missing.",
    ),
)
archive_argument = click.argument(
    "place", metavar="[ARCHIVE]", required=False, expose_value=False, callback=_record(KEYS["archive"])
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
state_options = options(
    common_options,
    archive_option,
    click.option(
        "-b",
        "--backup",
        default="latest",
        show_default=True,
        metavar="[N|LABEL|latest]",
        help="Restore point to show.",
    ),
    click.option(
        "--at",
        metavar="TIME",
        help="Show what 'restore --to-time TIME' would bring back: 2026-01-31T12:00:00Z, ms since 1970, or '2h ago'.",
    ),
    cache_option,
)
"""Which state of an archive is looked into."""
