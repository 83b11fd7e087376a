"""Types of values that several sections of the configuration have."""

from __future__ import annotations

Names = tuple[str, ...]
Properties = dict[str, str]
