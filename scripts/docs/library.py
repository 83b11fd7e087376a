"""infra/docs/python-reference.md: names of `import kbackup`, and masks, with their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any, is_typeddict

import kbackup
from kbackup import masking

_HEAD = """\
# Reference of `import kbackup`
What each name takes and returns. [python.md](python.md) has examples.

`config` is a path of `kbackup.toml`, a mapping of the same tables, or None: `./kbackup.toml` where there is one. A time
is text as [Times](configuration.md#times) has it, milliseconds since 1970, or a datetime with a zone. What jobs return
has the fields of [the schemas](json/README.md) of their commands.
"""
_MASKING = """
## kbackup.masking
Functions for a `transform`; [test-data.md](test-data.md#masks) says where they stand. `schemas` are what a function
with a parameter of this name gets.

"""
_WIDTH = 100


def library_document() -> str:
    names = [(name, getattr(kbackup, name)) for name in kbackup.__all__]
    sections = [
        _section(f"## {name}", f"kbackup.{name}", thing) for name, thing in names if not isinstance(thing, ModuleType)
    ]
    masks = [_section(f"### {name}", f"kbackup.masking.{name}", getattr(masking, name)) for name in masking.__all__]
    return "\n".join([_HEAD, *sections]) + _MASKING + "\n".join(masks)


def _section(heading: str, name: str, thing: object) -> str:
    return f"{heading}\n{_code(name, thing)}{_prose(thing)}\n{_members(thing)}"


def _members(thing: object) -> str:
    """Return the section of each public method and property of a class."""
    if not inspect.isclass(thing):
        return ""
    public = {name: member for name, member in vars(thing).items() if not name.startswith("_")}
    return "".join(
        f"\n### {thing.__name__}.{name}\n{_code(name, member)}{_prose(member)}\n"
        for name, member in public.items()
        if inspect.isfunction(member) or isinstance(member, property | cached_property)
    )


def _code(name: str, thing: object) -> str:
    """Return the signature as a block of code, of a class its fields; of a long one, one argument a line."""
    if inspect.isclass(thing):
        lines = [f"class {name}", *(f"    {field}: {kind}" for field, kind in _fields(thing))]
        text = "\n".join(lines)
    else:
        text = name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(_function(thing))))
        text = text.replace("(self, ", "(").replace("(self)", "()")
        if isinstance(thing, property | cached_property):
            text = text.replace("() ->", ":")
    if len(text) > _WIDTH and not inspect.isclass(thing):
        head, _, rest = text.partition("(")
        inside, _, end = rest.rpartition(")")
        parts = re.split(r", (?![^\[(]*[\])])", inside)
        text = f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return f"```python\n{text}\n```\n"


def _fields(thing: type) -> list[tuple[str, str]]:
    """Return the public fields of a dataclass or a TypedDict, with their types as they are written."""
    if is_typeddict(thing):
        return [(name, kind.__forward_arg__) for name, kind in thing.__annotations__.items()]
    fields = getattr(thing, "__dataclass_fields__", {})
    return [(name, str(field.type)) for name, field in fields.items() if not name.startswith("_")]


def _prose(thing: object) -> str:
    return inspect.getdoc(thing if inspect.isclass(thing) else _function(thing)) or ""


def _function(thing: Any) -> Callable[..., object]:
    """Return the function, also of a property."""
    function: Callable[..., object] = getattr(thing, "fget", None) or getattr(thing, "func", None) or thing
    return function
