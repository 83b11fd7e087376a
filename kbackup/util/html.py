"""Pages for browsers: what stands in them is text, whatever it holds."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from kbackup.util.text import printable


def templates(package: str) -> Environment:
    """Return the templates of `package`. Everything is escaped, and a name that is missing is an error."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # controls and marks that turn the direction of text are shown, not obeyed
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
