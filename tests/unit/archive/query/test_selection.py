"""Selections of topics and groups, and what is said of one that matches nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.archive.query.selection import Selection, check_selection
from kbackup.errors import UsageError

TOPICS = ["orders", "payments", "__consumer_offsets"]


def refusal(include: list[str], exclude: list[str] | None = None, **more: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        check_selection(Selection.of(include, exclude or []), "topic", TOPICS, "in A", "see ls", **more)
    return refused.value
