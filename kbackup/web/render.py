"""Render templates to pages, and make addresses of pages and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from starlette.responses import HTMLResponse

from kbackup import __version__
from kbackup.archive.query.selection import exact_entry
from kbackup.cli.common.human import human_size, plural
from kbackup.util.html import templates
from kbackup.util.printable import printable
from kbackup.util.times import duration_text
from kbackup.web import names, numbers


@cache
def environment() -> Environment:
    jinja = templates("kbackup.web")
    jinja.filters |= {
        "count": numbers.count,
        "size": numbers.size,
        "when": numbers.when,
        "ago": numbers.ago,
        "duration": duration_text,
        "short": numbers.short,
        "plain_size": human_size,
        "name": names.name,
        "key": names.key,
        "entry": exact_entry,
        "escaped": printable,  # a clipboard's text may be pasted into a terminal
    }
    jinja.globals |= {
        "version": __version__,
        "static": static,
        "plural": plural,
        "between": numbers.between,
        "percent": numbers.percent,
    }
    return jinja


def page(template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    return HTMLResponse(environment().get_template(template).render(context), status)


def path(*parts: object, **query: object) -> str:
    """Return the address of a page; parameters that are None are left out, a list is one for each entry."""
    address = "/" + "/".join(quote(str(part), safe="") for part in parts)
    parameters = {name: value for name, value in query.items() if value is not None}
    return f"{address}?{urlencode(parameters, doseq=True)}" if parameters else address


@cache
def static(name: str) -> str:
    """Return the address of a file under static/, which changes with its content."""
    data = resources.files("kbackup.web").joinpath("static", name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:12]}"
