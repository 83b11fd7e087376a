"""Values of librdkafka's properties, in each of the ways in which it reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping


def is_true(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a property that is true or false, in each of the ways that librdkafka reads."""
    value = properties.get(name, "").lower()
    if value in ("true", "t", "1"):
        return True
    if value in ("false", "f", "0"):
        return False
    return default


def number_of(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return a property that is a whole number: librdkafka reads 0x10 and 020 as well."""
    text = properties.get(name, "").strip()
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    try:
        return int(text, 0)
    except ValueError:
        return default


def seconds_of(properties: Mapping[str, str], name: str, most: float) -> float:
    """Return a property of milliseconds in seconds, at most `most`, which it is by default, and for 0."""
    milliseconds = number_of(properties, name, 0)
    if milliseconds <= 0:
        return most
    return min(most, milliseconds / 1000)
