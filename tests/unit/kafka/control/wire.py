"""Responses as they are after their way over the wire."""

from __future__ import annotations

from typing import Any


def through(response: Any, version: int) -> Any:
    """Return a response as a client reads it, in a version that carries more or less of it."""
    return type(response).decode(bytes(response.encode(version=version)), version=version)
