"""The value of a source that could not be looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotRead:
    """Why a source was not looked at, and the hint how to have it looked at."""

    why: str
    hint: str


def first_unread(*values: object) -> NotRead | None:
    """The first of `values` that was not read."""
    return next((value for value in values if isinstance(value, NotRead)), None)
