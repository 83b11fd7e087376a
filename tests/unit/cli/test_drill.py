"""The page of a drill, and messages about what a command did not do, which end with the command that does it."""

from __future__ import annotations

import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kbackup.cli.drill import drill_page
from kbackup.jobs.drill.report import DrillError, deletion_commands
from kbackup.store import open_store
from tests.support.archives import make_archive
from tests.support.drill_reports import EVIL, comparison, report
from tests.support.printed import Kbackup
from tests.support.verifications import SEGMENT


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
    text = drill_page(report())
    page = Page(text)
    for words in (
        "passed",
        "1,200 records in 1 topic, compared one by one",
        "2026-01-31 02:34 UTC restore point 7, 2h56m old when the drill began",
        "Bringing it back took 4m12s",
        "1 offset, all where they belong",
        "orders 2 1,200 5.0 MiB as archived",
    ):
        assert words in page.text
    assert not re.search(r"(?:src|href|@import|url\()", text), "it asks nothing of anybody else"
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form"})


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
        **dict.fromkeys(("archive", "target", "prefix"), EVIL),
        **dict.fromkeys(("findings", "warnings", "left", "kept"), (EVIL,)),
        versions={EVIL: EVIL},
        error=DrillError(type="ClusterError", message=EVIL, hint=EVIL, exit_code=1),
    )
    differs = comparison(ok=False)
    plain = Page(drill_page(report(result=result, comparison=differs, warnings=("w",), kept=("k",), findings=("f",))))
    text = drill_page(evil)
    page = Page(text)
    assert "script" not in page.tags
    assert page.attributes <= plain.attributes | {("class", "good"), ("class", "bad")}
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert page.text.count("{{7*7}}") >= 10
    assert page.text.count("<script>alert(1)</script>") >= 10


def test_a_drill_that_ended_early() -> None:
    early = report(
        result="failed",
        comparison=None,
        **dict.fromkeys(("restored_records", "restored_bytes"), 0),
        **dict.fromkeys(("restore_point_at", "data_age")),
        error=DrillError(type="UnreachableError", message="nobody answers", hint="is it on?", exit_code=14),
        seconds={"connect": 15.0},
    )
    text = Page(drill_page(early)).text
    assert "could not run" in text
    assert "says nothing about the archive: nobody answers; is it on?." in text
    assert "failed" not in text
    assert "Records compared none" in text


def test_a_drill_names_the_commands_that_delete_its_names() -> None:
    kept = report(
        prefix="drill-1.", kept=("topic drill-1.a", "group drill-1.my group"), left=("group drill-1.g: it's busy",)
    )
    assert deletion_commands(kept) == [
        r"kafka-topics.sh --bootstrap-server broker-1:9093 --delete --topic 'drill-1\..*'",
        "kafka-consumer-groups.sh --bootstrap-server broker-1:9093 --delete --group 'drill-1.my group' "
        "--group drill-1.g",
    ]
    assert deletion_commands(report()) == []


@pytest.fixture
def archive(tmp_path: Path) -> str:
    make_archive(open_store(str(tmp_path / "my archive")))
    return str(tmp_path / "my archive")


def last_note(kbackup: Kbackup, *args: str, code: int = 0) -> str:
    return kbackup(*args, code=code).err.splitlines()[-1]


def test_a_plan_names_the_command_that_does_it(archive: str, kbackup: Kbackup) -> None:
    args = ["expire", archive, "--keep-last", "1"]
    assert shlex.split(last_note(kbackup, *args).partition(": kbackup ")[2]) == [*args, "--confirm"]
    (Path(archive) / SEGMENT).unlink()
    args = ["repair", archive]
    assert shlex.split(last_note(kbackup, *args, code=3).partition(": kbackup ")[2]) == [*args, "--confirm"]


def test_a_command_line_with_a_secret_is_not_repeated(archive: str, kbackup: Kbackup) -> None:
    secret = ["--set", "s3.access_key_id=me", "--set", "s3.secret_access_key=hush"]
    expected = "nothing was changed; to expire, and to delete orphans: kbackup expire … --confirm"
    assert last_note(kbackup, "expire", archive, "--keep-last", "1", *secret) == expected


def test_findings_and_losses_name_what_comes_next(archive: str, kbackup: Kbackup) -> None:
    (Path(archive) / SEGMENT).unlink()
    expected = "take the objects from a copy; to see what can be mended without: kbackup repair"
    assert last_note(kbackup, "verify", archive, "--quick", code=13) == expected
    assert last_note(kbackup, "repair", archive, "--confirm", code=3).endswith("read the archive back: kbackup verify")
