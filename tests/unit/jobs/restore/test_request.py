"""What a restore is asked for is checked and parsed once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kbackup.config.models import Restore
from kbackup.config.windows import Range
from kbackup.errors import UsageError
from kbackup.jobs.restore.plan import select_content
from kbackup.jobs.restore.request import RestoreRequest
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore


def test_times_count_from_the_moment_of_the_request() -> None:
    before = int(time.time() * 1000)
    window = RestoreRequest.of(Restore(from_time="2h ago", to_time="2026-01-31T12:00:00.0005Z")).window
    after = int(time.time() * 1000)
    assert window.from_time is not None
    assert before <= window.from_time + 7_200_000 <= after
    assert window.to_time == 1_769_860_800_000


def test_offsets_and_names_are_parsed() -> None:
    given = Restore(range=("orders:0:5-9",), skip=("orders:2:7",), map={"a": "b"}, map_regex=("^x=y",))
    request = RestoreRequest.of(given)
    assert request.ranges == (Range("orders", 0, 5, 9),)
    assert request.skips == (Range("orders", 2, 7, 8),)
    assert [request.names.target_of(name) for name in ("a", "xx", "c")] == ["b", "yx", "c"]
    assert request.given is given


def test_only_a_request_with_an_id_names_a_restore_that_may_have_begun() -> None:
    named, other, another = (RestoreRequest.of(Restore(restore_id=id_)) for id_ in ("worst-day", None, None))
    assert (named.restore_id, named.names_restore) == ("worst-day", True)
    assert (other.names_restore, another.names_restore) == (False, False)
    assert other.restore_id != another.restore_id


def test_groups_and_schemas_can_be_left_alone() -> None:
    request = RestoreRequest.of(Restore(no_groups=True, schemas="none"))
    assert (request.groups, request.record_schemas) == (None, None)
    request = RestoreRequest.of(Restore(groups=("billing",), schemas="map", subject_prefix="re."))
    assert request.groups is not None
    assert request.groups.names == {"billing"}
    assert request.record_schemas is not None
    assert (request.record_schemas.asked, request.record_schemas.prefix) == ("map", "re.")


def test_an_expression_that_changes_with_time_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="--where now > 5 can't be used: now is not the same each time"):
        RestoreRequest.of(Restore(where="now > 5"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"range": ("orders:0:0-3",), "exclude_topics": ("orders",)}, "--range names its topics itself"),
        ({"range": ("orders:0:0-3",), "topics": ("orders",)}, "--range names its topics itself"),
        (
            {"from_time": "2026-02-01T00:00:00Z", "to_time": "2026-01-01T00:00:00Z"},
            "--from-time 2026-02-01T00:00:00Z is later than --to-time 2026-01-01T00:00:00Z",
        ),
    ],
)
def test_what_excludes_each_other_is_refused_where_a_restore_begins(keys: dict[str, Any], message: str) -> None:
    """A restore that goes on may have come to it: a topic of its ranges is left out, or '2h ago' is later by now."""
    store = MemoryStore()
    make_archive(store)
    request = RestoreRequest.of(Restore(**keys))
    with pytest.raises(UsageError, match=message):
        select_content(request, store)
