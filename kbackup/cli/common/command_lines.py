"""Command lines to copy: printable, quoted for POSIX shells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import click

from kbackup.cli.common.command_context import FlagValues
from kbackup.config import KEYS, Config, Key, Setting, exposes_secret
from kbackup.config.values import escape_references
from kbackup.errors import UsageError
from kbackup.store.registry import KINDS
from kbackup.util.text import kbackup_command, shell_line
from kbackup.util.times import time_text


def command_line(command: click.Command, settings: Mapping[str, object], *flags: str) -> str:
    """Return the command line of `command` that sets `settings`, values by path of the key, and gives `flags`.

    Raises `UsageError` for a value that is not printable."""
    names = {option.name: option.opts for option in command.params}
    words = ["kbackup", command.name or "", *flags]
    for path, value in settings.items():
        option_names = names[path.replace(".", "_")]
        long = next(name for name in option_names if name.startswith("--"))
        words += _words(KEYS[path], long, value)
    return shell_line(*words)


def _words(key: Key, option: str, value: object) -> Iterator[str]:
    """Yield the words that set a key: one option for each item of a list and for each entry of a table."""
    if isinstance(value, bool):
        if value:
            yield option
        return
    if isinstance(value, Mapping):
        for name, text in value.items():
            yield from _entry_words(key, option, name, text)
        return
    items = value if isinstance(value, list | tuple) else [value]
    for item in items:
        text = escape_references(str(item))
        yield from _option_words(option, text)


def _entry_words(key: Key, option: str, name: str, text: str) -> list[str]:
    """Return the words that set an entry of a table: as NAME=VALUE, or as TOML where NAME does not fit into that."""
    is_plain = name == name.strip() and "=" not in name and escape_references(name) == name
    if key.path == "restore.map_group" and "=" in text:
        # The option refuses it: the '=' may as well belong to the old name of the group.
        is_plain = False
    if name and is_plain and (name + text).isprintable():
        return _option_words(option, f"{name}={escape_references(text)}")
    return ["--set", f"{key.path}={{{_toml(name)} = {_toml(text)}}}"]


def _option_words(option: str, text: str) -> list[str]:
    if not text.isprintable():
        raise UsageError(
            f"{option} has a character that can't be shown", "escape it in a /regex/ or a string of jq: \\u202e"
        )
    if text.startswith("-"):
        # Apart from the option, a value with a hyphen would be read as an option of its own.
        return [f"{option}={text}"]
    return [option, text]


def _toml(text: str) -> str:
    """Return a TOML string of printable characters that holds no reference to a variable or a file."""
    signs = []
    for sign in text:
        is_plain = sign.isprintable() and sign not in '"\\$'
        shown = sign if is_plain else f"\\U{ord(sign):08x}"
        signs.append(shown)
    return f'"{"".join(signs)}"'


def store_options() -> list[str]:
    """Return the options of this run by which another command finds the same store: the file of the configuration, and
    flags of stores and of encryption. Secrets are left out."""
    state = click.get_current_context().ensure_object(FlagValues)
    words: list[str] = []
    if state.config_file is not None:
        words += ["--config", state.config_file]
    sections = {kind.section for kind in KINDS.values()}
    sections.add("encryption")
    for setting in state.settings:
        section = setting.path.partition(".")[0]
        if section not in sections or exposes_secret(setting.path, setting.value):
            continue
        words += _words_as_given(setting)
    return words


def confirmed_undo(config: Config) -> tuple[str, ...]:
    """Return the option with which a printed undo changes something.

    There is none where a later run can't tell this run's files from forged ones: it would refuse to go by them. Without
    the option it shows its plan, and then the command that trusts them."""
    remembers = config.metadata_cache
    is_encrypted = config.encryption.key is not None
    return ("--confirm",) if remembers or is_encrypted else ()


def undo_command(config: Config, *words: str, clusters: Collection[str]) -> str:
    """Return the whole command line that undoes what this run has done: `words` and `--confirm`, with the options by
    which this run found the archive, its state and what the sections `clusters` name.

    Dots stand for secrets of the command line. `confirmed_undo` says when `--confirm` is left out."""
    state = click.get_current_context().ensure_object(FlagValues)
    options = store_options()
    has_secret = False
    for setting in state.settings:
        section = setting.path.partition(".")[0]
        if exposes_secret(setting.path, setting.value):
            has_secret = True
        elif setting.path == "archive":
            # It may have been an argument, which not every command takes.
            options += _option_words("--archive", str(setting.value))
        elif section in clusters or setting.path == "restore.state":
            options += _words_as_given(setting)
    if "target" in clusters and state.target_file is not None:
        options += ["--target-config", state.target_file]
    if state.accept_rollback:
        options.append("--accept-rollback")
    line = kbackup_command(*words, *confirmed_undo(config), *options)
    return f"{line} …" if has_secret else line


def _words_as_given(setting: Setting) -> list[str]:
    """Return the words that set a key, or an entry of a table, by the option by which this run got it."""
    option = setting.origin.name
    if option == "--set":
        return ["--set", f"{setting.path}={setting.value}"]
    if setting.path in KEYS:
        return list(_words(KEYS[setting.path], option, setting.value))
    return _option_words(option, str(setting.value))


def own_command(*add: str, drop: Collection[str] = (), times: Mapping[str, int | None] = MappingProxyType({})) -> str:
    """Return this run's command line with the options `add`, or without the options `drop`, for messages. `times` are
    in ms since the epoch, by option: they replace what the command line says, which may be "2h ago".

    Where it holds a secret, all arguments but the command are dots."""
    context = click.get_current_context()
    state = context.ensure_object(FlagValues)
    # A secret may be a part of any argument, so none of them is shown.
    has_secret = any(exposes_secret(setting.path, setting.value) for setting in state.settings)
    if has_secret:
        return " ".join([context.command_path, "…", *add])
    kept = [word for word in state.arguments if word not in drop]
    fixed = _with_times(kept, times)
    return kbackup_command(*fixed, *add)


_NAMES_OF_TIMES = {"--from-time": "--from-time", "--to-time": "--to-time", "--at": "--to-time"}


def _with_times(words: Sequence[str], times: Mapping[str, int | None]) -> list[str]:
    """Return the words of a command line with `times` as the values of their options."""
    fixed: list[str] = []
    rest = iter(words)
    for word in rest:
        option, sign, _ = word.partition("=")
        name = _NAMES_OF_TIMES.get(option, "")
        time = times.get(name)
        if time is None:
            fixed.append(word)
            continue
        if not sign:
            next(rest, None)  # the value is the next word
        fixed += [name, time_text(time)]
    return fixed
