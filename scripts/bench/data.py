"""Records that look like a shop's: JSON of an exact size, no two alike, that compress as JSON does; or random bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

PARTITIONS = 4
_FIRST = 1_700_000_000_000  # ms since the epoch
_STATUS = ("paid", "pending", "shipped", "returned", "cancelled")
_WORDS = """
parcel express standard pickup locker refund voucher gift wrapped door left right floor bell before after noon
Berlin Lisbon Oslo Graz Turin Porto Lyon Ghent shoes lamp chair kettle novel bicycle tent guitar
"""
_TEXT = " ".join(random.Random(1).choices(_WORDS.split(), k=20_000))


class Record(NamedTuple):
    """`timestamp` in ms since the epoch."""

    key: bytes
    value: bytes
    timestamp: int


def records(size: int, first: int, count: int) -> Iterator[Record]:
    """`count` records from number `first` on, with values of `size` bytes (at least 128); the same every time."""
    draw = random.Random(f"{size}:{first}").random
    for number in range(first, first + count):
        head = (
            f'{{"id":{number},"customer":{int(draw() * 1e9)},"amount":{draw() * 1000:.2f},'
            f'"status":"{_STATUS[int(draw() * len(_STATUS))]}","token":"{draw().hex()[4:17]}","note":"'
        )
        at, length = int(draw() * (len(_TEXT) - size)), size - len(head) - 2
        value = f'{head}{_TEXT[at : at + length]}"}}'.encode()
        yield Record(f"order-{number % 50_021:06d}".encode(), value, _FIRST + 7 * number)


def random_records(size: int, first: int, count: int) -> Iterator[Record]:
    """`count` records as `records` has them, with random values, which no compression makes smaller."""
    draw = random.Random(f"{size}:{first}").randbytes
    for number in range(first, first + count):
        yield Record(f"order-{number % 50_021:06d}".encode(), draw(size), _FIRST + 7 * number)


Made = Callable[[int, int, int], Iterator[Record]]
"""`records` or `random_records`."""


def encoded_bytes(size: int) -> int:
    """Bytes of one of these records in a segment: seven fields of fixed width, key and value."""
    return 36 + len(b"order-000000") + size
