"""Archives that earlier versions wrote (`tests/golden/kept/README.md`), and documents of a later version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbackup.archive import layout
from kbackup.archive.models import text_checksum
from kbackup.archive.reader import open_archive
from kbackup.config.models import Restore
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store import Store, open_store
from tests.support.archives import KEPT
from tests.support.printed import Kbackup
from tests.support.restores import make_plan
from tests.support.visits import crawl, visit

ARCHIVES = sorted(str(path.relative_to(KEPT)) for path in KEPT.glob("*/*/"))


class Kept(NamedTuple):
    """A copy of a kept archive, and its key. `version` is the folder of its version."""

    folder: Path
    key: str
    version: Path

    @property
    def options(self) -> list[str]:
        return ["--archive", str(self.folder), *(["--encryption-key", self.key] if self.key else [])]

    def open(self) -> Store:
        return open_store(str(self.folder), key=self.key, key_class=layout.key_class)

    def printed(self, topic: str) -> list[dict[str, Any]]:
        """Return the records that `cat --json` of its version printed."""
        return [json.loads(line) for line in (self.version / f"{topic}.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(params=ARCHIVES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    kept = KEPT / request.param
    shutil.copytree(kept, tmp_path / "archive")
    return Kept(tmp_path / "archive", f"file:{kept.parent}/key" if kept.name == "encrypted" else "", kept.parent)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT / "0.1.0" / "plain", tmp_path / "archive"))


def test_there_are_archives_of_the_first_version() -> None:
    assert {"0.1.0/encrypted", "0.1.0/plain"} <= {*ARCHIVES}


def test_it_is_listed_and_shown(kept: Kept, kbackup: Kbackup) -> None:
    points = kbackup("list", "--json", *kept.options).json["restore_points"]
    assert [(point["number"], point["losses"]) for point in points] == [(1, 0), (2, 1), (3, 0)]
    for command in (
        ["info", "--restore-point", "2"],
        ["info", "orders"],
        ["ls", "orders"],
        ["log"],
        ["groups", "show"],
        ["diff", "2", "3"],
    ):
        assert kbackup(*command, *kept.options).out, command


@pytest.mark.parametrize("topic", ["orders", "clicks"])
def test_its_records_are_those_that_its_version_read(topic: str, kept: Kept, kbackup: Kbackup) -> None:
    assert kbackup("cat", topic, "--json", *kept.options).records == kept.printed(topic)


@pytest.mark.usefixtures("tasks_run_here")
def test_every_byte_of_it_is_verified(kept: Kept) -> None:
    session: Callable[[], Any] = lambda: None  # noqa: E731
    report = verify(kept.open(), "all", False, session, Silent())
    assert (report.findings, report.notes, report.restore_points) == ((), (), (1, 2, 3))
    first_clicks = 12
    assert report.read_records == len(kept.printed("orders") + kept.printed("clicks")) + first_clicks


def test_a_restore_of_it_is_planned(kept: Kept) -> None:
    store, options = kept.open(), Restore(restore_point="3")
    plan = make_plan(options, store, "target", open_archive(store))
    planned = {(topic.source, topic.incarnation): topic.records for topic in plan.topics}
    assert planned == {(topic, n): len(kept.printed(topic)) for topic, n in (("orders", 1), ("clicks", 2))}
    assert [group.source for group in plan.groups] == ["billing"]
    assert plan.topics[0].configs == {"retention.ms": "-1"}


@pytest.mark.exhaustive
def test_each_kind_of_page_shows_it(kept: Kept) -> None:
    answers = {address: status for address, status, _ in crawl(visit(kept.open()), of_a_kind=1)}
    assert len(answers) > 20
    assert {address: status for address, status in answers.items() if status not in (200, 303, 307)} == {}


def newer(path: Path, **members: object) -> None:
    """Make a document one of an imagined later version, whole by its own checksum."""
    text = json.dumps(json.loads(path.read_text("utf-8")) | members).encode()
    old = json.dumps(json.loads(text)["checksum"]).encode()
    path.write_bytes(text.replace(old, json.dumps(text_checksum(text)).encode()))


def contents(folder: Path) -> dict[str, bytes]:
    """Return all objects; a repair takes the lease before it reads them."""
    store = open_store(str(folder))
    return {entry.key: store.get(entry.key) for entry in store.list() if entry.key != layout.LOCK}


def newest(folder: Path, pattern: str) -> str:
    return str(max(folder.glob(pattern)).relative_to(folder))


@pytest.mark.parametrize(
    ("document", "command"),
    [
        (layout.ARCHIVE, ["list"]),
        (layout.ARCHIVE, ["label", "3", "after"]),
        (layout.ARCHIVE, ["repair", "--confirm"]),
        (layout.LATEST, ["list"]),
        ("catalog/0*.json", ["list"]),
        ("catalog/0*.json", ["label", "3", "after"]),
        ("catalog/0*.json", ["repair", "--confirm"]),
        ("points/0000000003-*/manifest.json", ["info", "--restore-point", "3"]),
        ("points/0000000003-*/manifest.json", ["repair", "--confirm"]),
        (layout.LOCK, ["unlock", "--yes"]),
        (layout.LOCK, ["repair", "--confirm"]),
    ],
)
def test_a_newer_document_is_refused_by_name(document: str, command: list[str], plain: Path, kbackup: Kbackup) -> None:
    key = newest(plain, document)
    known = json.loads((plain / key).read_text("utf-8"))["version"]
    newer(plain / key, version=9)
    before = contents(plain)
    err = kbackup(*command, "--archive", str(plain), code=13).err
    assert f"kbackup: file {key} has version 9, known is {known}\n" in err
    assert "hint: use the kbackup that wrote it, or a newer one\n" in err
    assert contents(plain) == before
    newer(plain / key, version=known, surprise=1)
    assert (
        f"file {key}: Object contains unknown field `surprise`"
        in kbackup(*command, "--archive", str(plain), code=13).err
    )


def test_verify_names_each_newer_document(plain: Path, kbackup: Kbackup) -> None:
    keys = [newest(plain, f"points/000000000{number}-*/manifest.json") for number in (2, 3)]
    for key in keys:
        newer(plain / key, version=9)
    printed = kbackup("verify", "--quick", str(plain), code=13)
    hint = "  hint: use the kbackup that wrote it, or a newer one"
    assert printed.lines[:4] == [each for key in keys for each in (f"{key}: has version 9, known is 2", hint)]
    assert "repair" not in printed.err, "nothing is damaged"
