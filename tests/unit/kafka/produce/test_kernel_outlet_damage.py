"""The producer kernel with damaged blocks and error texts, against librdkafka's own mock brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.formats.layout import layout
from kbackup.kafka.client import Connection
from kbackup.kafka.native.outlet import KernelOutlet, _words
from kbackup.types import TopicPartition
from tests.support.plain_records import Plain, block_of

TP = TopicPartition("t", 0)
SETTINGS = {"enable.idempotence": True, "linger.ms": 1, "test.mock.num.brokers": 1}

field = st.none() | st.binary(max_size=12)
plain = st.builds(
    Plain,
    field,
    field,
    st.sampled_from([-2, -1, 0, 1]),
    st.integers(0, 3),
    st.lists(st.tuples(st.binary(max_size=4), field), max_size=3).map(tuple),
)
damage = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(plain, min_size=1, max_size=6), damage=damage)
def test_damage_is_refused_where_the_codec_refuses_it(
    outlet: Any, records: list[Plain], damage: list[tuple[int, int]]
) -> None:
    block = block_of(records)
    data = block.data.copy()
    for at, octet in damage:
        data[at % len(data)] = octet
    block = replace(block, data=data)
    expected = complaint(lambda: layout(block, "record block", 0))
    assert complaint(lambda: outlet.send(TP, block)) == expected


def complaint(call: Callable[[], object]) -> str | None:
    try:
        call()
    except CorruptError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def outlet() -> Iterator[Any]:
    connection = Connection({"bootstrap.servers": "mock:1"}, "target")
    made = KernelOutlet(connection, SETTINGS, "group")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("positions", -1), ("positions", 1 << 62), ("lengths", -5), ("lengths", 1 << 62), ("lengths", 23)],
)
def test_an_index_that_points_outside(outlet: Any, column: str, value: int) -> None:
    block = block_of([Plain(b"k", b"v" * 100)] * 3, range(3))
    changed = getattr(block, column).copy()
    changed[1] = value
    with pytest.raises(CorruptError):
        outlet.send(TP, replace(block, **{column: changed}))


def test_an_index_of_uneven_columns(outlet: Any) -> None:
    block = block_of([Plain(b"k", b"v" * 100)] * 3, range(3))
    with pytest.raises(CorruptError, match="different lengths"):
        outlet.send(TP, replace(block, lengths=np.empty(0, np.int64)))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (b"Timestamp 7 is out of range\0\0", "Timestamp 7 is out of range"),
        (b"\0Timestamp", ""),
        (b"-\xf0\x9cl\xe9\x07\0", ""),
        (b"-@\x7f\0", ""),
    ],
)
def test_a_reason_that_was_freed_is_not_told(memory: bytes, words: str) -> None:
    assert _words(memory) == words
