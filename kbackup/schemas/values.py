"""Values of Python as JSON can say them, without losing any of them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

from kbackup.schemas.base import Json

_MOST_ZEROS = 1_000


def plain(value: object) -> Json:
    """Decimals as text with all their digits (and an exponent where too many zeros would lead), times as RFC 3339,
    bytes as base64, what is no number as `NaN`, `Infinity`, `-Infinity`; `TypeError` for what has no such form."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return _exact(value).replace("+00:00", "Z")
    if isinstance(value, time):
        return _exact(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        # of a schema's scale of millions, two bytes would be megabytes of zeros
        return f"{value:f}" if value.adjusted() >= -_MOST_ZEROS else str(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _exact(moment: datetime | time) -> str:
    return moment.isoformat(timespec="microseconds" if moment.microsecond % 1000 else "milliseconds")
