"""Sizes and durations as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for end, base in (("b", 1000), ("ib", 1024))
}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of "8MiB", "5GB" or "1024". `ValueError` for others, and where it is no whole number of bytes."""
    return _whole(_quantity(text, _UNITS))


def parse_duration(text: str) -> float:
    """Seconds of "90s", "500ms", "5m", "1h", "2d" or "90". `ValueError` for others."""
    return _quantity(text, _SECONDS)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2].lower() not in units:
        raise ValueError(text)
    return float(found[1].replace("_", "")) * units[found[2].lower()]


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError(value)
    return int(value)
