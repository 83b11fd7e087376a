"""The page that plans a restore, as its user copies commands from it and fills in its form."""

from __future__ import annotations

import re
import shlex
from html import unescape

from starlette.testclient import TestClient

from tests.support.visits import tags, text

COMMAND = re.compile(r'<div class="command"><pre[^>]*>(.*?)</pre>', re.S)


def commands(client: TestClient, address: str) -> list[list[str]]:
    """Return the words of the commands of a page, as a shell reads them."""
    answer = client.get(address)
    assert answer.status_code == 200, text(answer.text)
    return [shlex.split(each) for each in command_lines(answer.text)]


def command_lines(html: str) -> list[str]:
    """Return the commands that a page shows: the dry run, and the restore."""
    lines = [unescape(each) for each in COMMAND.findall(html)]
    assert all(line.isprintable() for line in lines)
    return lines


def form_fields(html: str) -> list[tuple[str, str]]:
    """Return names and values of what a browser sends of the form: line ends as CR LF."""
    return [
        (a["name"] or "", re.sub("\r?\n", "\r\n", a.get("value") or ""))
        for tag, a in tags(html)
        if tag == "input" and "name" in a and (a.get("type") != "checkbox" or "checked" in a)
    ]
