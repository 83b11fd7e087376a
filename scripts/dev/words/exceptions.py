"""Names and sizes that the rules let pass, each with its reason; an exception that nothing needs is a problem."""

from __future__ import annotations

from typing import NamedTuple


class Exemption(NamedTuple):
    path: str  # of a file or a folder
    name: str  # `function`, `parameter`, `Class`, `Class.attribute` or `module.py`
    reason: str


EXEMPTIONS: list[Exemption] = []
