"""Ten thousand topics and as many groups."""

from __future__ import annotations

import time
from unittest import mock

import pytest

from kbackup.archive.run import WritingRun, open_or_create
from kbackup.store.base import Store
from tests.support.archives import commit_point, group_at, topic_state
from tests.support.memory_store import MemoryStore
from tests.support.visits import text, visit

COUNT = 10_000


@pytest.fixture(scope="module")
def store() -> Store:
    made = MemoryStore()
    states = [topic_state(f"team-{n % 40:02}.topic-{n:05}", 1, "present", [(0, n, [])] * 3) for n in range(COUNT)]
    groups = [group_at(f"group-{n:05}", (states[n].name, 0, 0)) for n in range(COUNT)]
    with mock.patch.object(WritingRun, "refresh_derived"):  # thousands of files that nobody looks at here
        commit_point(open_or_create(made), 1, states, [], groups)
    return made


@pytest.mark.exhaustive
def test_pages_of_ten_thousand_topics_are_small_and_quick(store: Store) -> None:
    """Read once; then a page is a matter of what stands on it."""
    client = visit(store)
    began = time.process_time()
    assert client.get("/topics").status_code == client.get("/groups").status_code == 200
    assert time.process_time() - began < 8
    for address, text_of_page in (
        ("/topics", "1-100 of 10,000 topics"),
        ("/topics?page=100&sort=gaps", "9,901-10,000 of 10,000 topics"),
        ("/topics?q=TEAM-07+topic", "1-100 of 250 topics"),
        ("/topics?q=topic-09999", "1 topic "),
        ("/topics/team-07.topic-00007", "3 partitions"),
        ("/groups?page=3", "201-300 of 10,000 groups"),
        ("/group?name=group-00042", "1 partition "),
        ("/", "10,000"),
        ("/points/1", "10,000"),
        ("/growth", "9,970 other topics"),
    ):
        began = time.process_time()
        page = client.get(address).text
        assert time.process_time() - began < 1.5, address
        assert text_of_page in text(page).replace("\N{EN DASH}", "-").replace(" -", "-").replace("- ", "-"), address
        assert len(page) < 200_000, address
