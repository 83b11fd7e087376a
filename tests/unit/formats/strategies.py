"""Hypothesis strategies for records."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.unit.formats.reference import Header, Record

_INT64 = st.integers(-(2**63), 2**63 - 1)
_OCTETS = st.none() | st.binary(max_size=40)
_HEADERS: st.SearchStrategy[list[Header]] = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), _OCTETS), max_size=4
)


@st.composite
def _contents(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from([-2, -1, 0, 1]))
    timestamp = draw(_INT64) if kind >= 0 else None
    return Record(0, kind, timestamp, draw(_OCTETS), draw(_OCTETS), draw(_HEADERS))


@st.composite
def records(draw: st.DrawFn, min_size: int = 0, max_size: int = 60) -> list[Record]:
    """Records with increasing offsets, of all four timestamp types, few and many with headers.

    Up to five different ones in any order, with gaps: to draw each anew made the tests four times slower.
    """
    kinds = draw(st.lists(_contents(), min_size=1, max_size=5))
    order = draw(st.binary(min_size=min_size, max_size=max_size))
    offset = draw(st.integers(-1, 2**50))
    made = []
    for octet in order:
        offset += 1 + (octet >> 4) ** 4
        made.append(kinds[octet % len(kinds)]._replace(offset=offset))
    return made
