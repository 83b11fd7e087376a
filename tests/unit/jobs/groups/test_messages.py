"""Messages about groups that were not set end with the command that sets them."""

from __future__ import annotations

import pytest

from kbackup.jobs.groups.job import GroupResult, not_applied
from kbackup.jobs.groups.plan import GroupOffsetResult

OFFSET = GroupOffsetResult(topic="a", partition=0, source=1, target=2, how="exact")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            GroupResult(
                source="g", group="g", status="left alone", why="it has 1 live member", offsets=(OFFSET,)
            ),
            "group g was not set: it has 1 live member; stop it, then: "
            "kbackup groups apply --restore-id quiet --group g",
        ),
        (
            GroupResult(source="g", group="g", status="refused", why="it can't be read", offsets=(OFFSET,)),
            "group g was not set: it can't be read; mend the cause, then: "
            "kbackup groups apply --restore-id quiet --group g",
        ),
        (
            GroupResult(
                source="my g", group="h", status="left alone", why="it has 2 live members", offsets=(OFFSET,)
            ),
            "group h was not set: it has 2 live members; stop it, then: "
            "kbackup groups apply --restore-id quiet --group 'my g' --map-group 'my g=h'",
        ),
        (
            GroupResult(source="g", group="g", status="left alone", why="it gets no offset", offsets=()),
            "group g was not set: it gets no offset",
        ),
    ],
)
def test_the_command_sets_the_group(result: GroupResult, message: str) -> None:
    assert not_applied([result], "--restore-id", "quiet") == [message]


def test_a_group_that_was_set_may_lack_offsets() -> None:
    applied = GroupResult(
        source="g", group="g", status="applied", offsets=(OFFSET,), left_out=("b-0 is not on the target",)
    )
    assert not_applied([applied]) == ["group g lacks an offset: b-0 is not on the target"]
