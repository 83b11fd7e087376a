"""A link that can't be made says so, and how it could; nothing is left behind."""

from __future__ import annotations

import os

import pytest

from kbackup.errors import UsageError
from scripts.bench.link import Link


def test_without_root_it_ends_in_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="run as root, with Debian's package iproute2"), Link(0.03):
        pytest.fail("a link was made")
