"""The page of a drill: hostile names stay text, and it asks nothing of anybody else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from kbackup.cli.drill.page import drill_page
from kbackup.jobs.drill.report import DrillError
from tests.support.drill_reports import EVIL, comparison, report


class Page(HTMLParser):
    """Which elements and attributes a page has, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.words: list[str] = []
        self.feed(page)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_summarizes_a_passed_drill() -> None:
    page = Page(drill_page(report()))
    for words in (
        "passed",
        "1,200 records in 1 topic, compared one by one",
        "2026-01-31 02:34 UTC restore point 7, 2h56m old when the drill began",
        "Bringing it back took 4m12s",
        "1 offset, all where they belong",
        "orders 2 1,200 5.0 MiB as archived",
    ):
        assert words in page.text


def test_page_of_a_failed_drill_begins_with_findings() -> None:
    failed = report(result="failed", comparison=comparison(ok=False), findings=("this is wrong",))
    page = Page(drill_page(failed))
    assert ("class", "result failed") in page.attributes
    assert "What is wrong this is wrong" in page.text
    assert "orders-0 value differs: source offset 12, target offset 14" in page.text
    assert page.text.index("this is wrong") < page.text.index("Topics topic")


def test_lost_records_are_told_in_the_first_sentence() -> None:
    failed = report(result="failed", findings=("loss: of 7",), losses=("of 7",), damaged=(6, 7))
    text = Page(drill_page(failed)).text
    assert "The archive has lost records of what was restored, in 1 place: see below." in text
    assert "damaged restore points 6, 7" in text


@pytest.mark.parametrize("result", ["passed", "failed", "interrupted"])
def test_hostile_names_stay_text(result: str) -> None:
    evil = report(
        result=result,
        comparison=comparison(EVIL, ok=False),
        archive=EVIL,
        target=EVIL,
        prefix=EVIL,
        findings=(EVIL,),
        warnings=(EVIL,),
        left=(EVIL,),
        kept=(EVIL,),
        versions={EVIL: EVIL},
        error=DrillError(type="ClusterError", message=EVIL, hint=EVIL, exit_code=1),
    )
    plain = Page(drill_page(report(result=result, warnings=("w",), kept=("k",), findings=("f",))))
    text = drill_page(evil)
    page = Page(text)
    assert "script" not in page.tags
    assert page.attributes <= plain.attributes | {("class", "good"), ("class", "bad")}
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert page.text.count("{{7*7}}") >= 10
    assert page.text.count("<script>alert(1)</script>") >= 10


def test_nothing_from_elsewhere() -> None:
    page = drill_page(report())
    assert not re.search(r"(?:src|href|@import|url\()", page)
    assert Page(page).tags.isdisjoint({"script", "link", "img", "iframe", "object", "form"})


def test_a_drill_that_ended_early() -> None:
    error = DrillError(type="UnreachableError", message="nobody answers", hint="is it on?", exit_code=14)
    early = report(
        result="failed",
        comparison=None,
        restored_records=0,
        restored_bytes=0,
        restore_point_at=None,
        data_age=None,
        error=error,
        seconds={"connect": 15.0},
    )
    text = Page(drill_page(early)).text
    assert "could not be carried through: nobody answers" in text
    assert "Records compared none" in text
