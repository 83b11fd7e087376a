"""Whatever a client sends about groups, it gets an answer that can be encoded, or its connection is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from kbackup.serve.groups.answers import GroupAnswers
from kbackup.serve.protocol import Api, HostileClientError
from tests.unit.serve.asking import Asking, in_loop
from tests.unit.serve.groups.builders import Contents, committed, topic_id

# Few values, so that requests have to do with one another.
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", "g", "h", "archived", "m1", "m2", "one", "a", "b", "range", "consumer", "("]),
    "bytes": st.sampled_from([b"", b"x", bytes(100)]),
    "bool": st.booleans(),
    "uuid": st.sampled_from([topic_id("a"), topic_id("b"), topic_id("missing")]),
    "int8": st.integers(-1, 3),
    "int16": st.integers(-1, 3),
    "int32": st.sampled_from([-(1 << 31), -2, -1, 0, 1, 2, 3, 6000, 10_000, (1 << 31) - 1]),
    "int64": st.sampled_from([-(1 << 63), -1, 0, 1, 100, (1 << 63) - 1]),
}

_APIS = {api.request.name: api for api in GroupAnswers(Contents()).apis()}


def _structures(structure: Any, version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return values for the fields of a message or a structure."""
    fields = structure.fields.values() if isinstance(structure.fields, Mapping) else structure.fields
    return st.fixed_dictionaries({each.name: _values(each, version) for each in fields if each.for_version_q(version)})


def _values(field: Any, version: int) -> st.SearchStrategy[Any]:
    if field.is_struct_array():
        element = _structures(field, version).map(lambda values: field.data_class(**values))
        values: st.SearchStrategy[Any] = st.lists(element, max_size=3)
    elif field.is_array():
        values = st.lists(_VALUES[field.type_str.removeprefix("[]")], max_size=3)
    else:
        values = _VALUES[field.type_str]
    if field.nullable_for_version_q(version):
        return st.none() | values
    return values


@st.composite
def _requests(draw: st.DrawFn) -> tuple[Any, int]:
    api: Api = draw(st.sampled_from(list(_APIS.values())))
    version = draw(st.integers(api.oldest, api.newest))
    return api.request(**draw(_structures(api.request, version))), version


@settings(max_examples=150, deadline=None)
@given(requests=st.lists(_requests(), min_size=1, max_size=15))
def test_every_request_is_answered(requests: list[tuple[Any, int]]) -> None:
    contents = Contents(a=2, b=1)
    contents.archived = {"archived": [committed("a", 0, 10)]}
    ask = Asking(GroupAnswers(contents).apis())

    async def scenario() -> None:
        answering = []
        for message, version in requests:
            answering.append(asyncio.ensure_future(ask(message, version)))
            await asyncio.sleep(0)
        # Joins wait for others, as they should; nobody waits for them here.
        done, waiting = await asyncio.wait(answering, timeout=0.001)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, HostileClientError):
                raise error

    in_loop(scenario)
