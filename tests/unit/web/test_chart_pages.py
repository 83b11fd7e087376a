"""Charts on pages: lag, growth and strips, and how many objects they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.run import open_or_create
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.web.archive_cache import SAMPLES
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point, group_at, make_archive, topic_state
from tests.support.faulty_store import FaultyStore
from tests.support.growing_archive import expired, grow
from tests.support.memory_store import MemoryStore
from tests.support.visits import tags, text, visit


def test_lag_over_time(rich: Store) -> None:
    client = visit(rich)
    shown = client.get("/group?name=billing").text
    assert 'aria-label="Lag at restore points:' in shown
    assert "The chart shows" not in text(shown), "all restore points"
    charts = client.get("/groups/lag").text
    assert charts.count('<figure class="chart">') == 8
    assert charts.count("now <b>") == 8


@pytest.mark.exhaustive
def test_a_chart_reads_a_sample_of_restore_points() -> None:
    store = FaultyStore(MemoryStore())
    archive = open_or_create(store)
    count = 2 * SAMPLES
    for number in range(1, count + 1):
        at = f"2026-01-{number // 24 + 1:02}T{number % 24:02}:00:00.000Z"
        topic = topic_state("orders", number, "present", [(0, 100 + number, [])])
        commit_point(archive, number, [topic], [], [group_at("billing", ("orders", 0, 50))], at=at)
    client = visit(store)
    client.get("/groups")
    store.calls.clear()
    shown = text(client.get("/group?name=billing").text)
    assert f"of {count} restore points" in shown
    read = {key for _, key in store.calls if key.startswith("points/")}
    assert SAMPLES < len(read) <= 2 * SAMPLES
    store.calls.clear()
    assert client.get("/groups/lag").status_code == 200
    assert store.calls == [], "read once"


def test_charts_of_growth(rich: Store) -> None:
    client = visit(rich)
    growth = client.get("/growth").text
    assert growth.count('<figure class="chart">') == 4 + 6
    assert "in the last 7 days" in text(growth)
    assert "Stored by restore points up to then" in text(client.get("/topics/orders").text)


def test_strips_show_what_is_lost(rich: Store, store: Store) -> None:
    for address in ("/topics/orders/1", "/topics/orders"):
        shown = visit(rich).get(address).text
        assert "lost: offsets 4 to 6" in shown
        assert "archived , lost" in text(shown) or "archived, lost" in text(shown)
    titles = [attributes for tag, attributes in tags(visit(store).get("/topics/orders/0").text) if tag == "rect"]
    assert [rect["class"] for rect in titles] == ["rail", "fill", "fill", "lost"]


def test_strips_of_expired_records(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    grow(store, 3, 12, 20)
    expired(store, before=15)
    shown = visit(store).get("/topics/orders/1").text
    assert "expired: offsets before 12" in shown
    assert 'class="ticks"><span><data class="n" value="0">' in shown
    assert "expired" in text(visit(store).get("/topics/orders").text)


@pytest.mark.parametrize("address", ["/groups", "/groups/lag"])
def test_charts_of_a_folder_of_the_java_tool(address: str) -> None:
    client = visit(FileStore(JAVA / "archive"))
    assert client.get(address).status_code == 200
