"""The table of keys in infra/docs/configuration.md, from the table of keys in the code."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from kbackup.config import KEYS, Key
from scripts.docs.commands import all_commands, visible

PAGE = "infra/docs/configuration.md"
_HEAD = "| key | takes | default | meaning |\n|---|---|---|---|\n"
_NOUN = re.compile(r"^an? (\w+) such as [^,]+")
_LIMIT = re.compile(r", at least (\S+)$")


def configuration_document(root: Path) -> str:
    """Return the page with the table of keys made anew."""
    text = (root / PAGE).read_text("utf-8")
    before, head, rest = text.partition(_HEAD)
    assert head, f"{PAGE} has no table of keys"
    return before + head + "".join(map(_row, KEYS.values())) + rest[rest.index("\n\n") + 1 :]


def _row(key: Key) -> str:
    default = f"`{key.default_text}`" if key.default_text else ""
    return f"| `{key.path}` | {_takes(key)} | {default} | {_options().get(key.path, key.doc)} |\n"


@functools.cache
def _options() -> dict[str, str]:
    """Return the option that commands.md explains in the words of a key, by the key's path."""
    paths = {path.replace(".", "_"): path for path in KEYS}
    options = {}
    for command in all_commands().values():
        for option in visible(command.params):
            path = paths.get(option.name or "")
            if path and (option.help or "").startswith(KEYS[path].doc):
                options[path] = f"`{option.opts[-1]}`"
    return options


def _takes(key: Key) -> str:
    """Return the kind of value, as `How values are written` names it, with limits and choices."""
    if key.kind in ("time", "table"):
        return key.kind
    unit = "s" if key.kind == "duration" else ""
    text = _LIMIT.sub(rf" ≥ \1{unit}", _NOUN.sub(r"\1", key.expected))
    text = re.sub(r"^a ", "", text).replace("true or false", "flag")
    return "list" if text == "list of text" else text.replace("list of ", "list: ")
