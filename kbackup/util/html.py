"""Pages for browsers: what stands in them is text, whatever it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

from kbackup.util.text import printable


def templates(package: str, others: Sequence[Path] = ()) -> Environment:
    """Return the templates of `package`, and those in `others`: folders of templates that extend them.

    Everything is escaped, and a name that is missing is an error.
    """
    own = PackageLoader(package)
    return Environment(
        loader=ChoiceLoader([own, FileSystemLoader(others)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )


def _harmless(value: object) -> object:
    """Return what a template prints: controls, and marks that turn the direction of text, are shown and not obeyed."""
    # A subclass of str is markup, which a filter has escaped already.
    return printable(value) if type(value) is str else value
