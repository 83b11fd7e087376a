"""Messages about what a command did not do end with the command that does it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.cli.drill.command import _deletions
from kbackup.store import open_store
from tests.support import drill_reports
from tests.support.archives import make_archive
from tests.support.verifications import SEGMENT

Said = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_archive(open_store(str(tmp_path / "my archive")))
    return tmp_path / "my archive"


def notes(capsys: Said, *args: str, code: int = 0) -> list[str]:
    capsys.readouterr()
    assert main([*args]) == code
    return capsys.readouterr().err.splitlines()


def named_command(capsys: Said, *args: str, code: int = 0) -> list[str]:
    """Return the words of the command that the last note ends with."""
    _, _, command = notes(capsys, *args, code=code)[-1].partition(": kbackup ")
    return shlex.split(command)


def test_a_plan_names_the_command_that_does_it(root: Path, capsys: Said) -> None:
    args = ["expire", str(root), "--keep-last", "1"]
    assert named_command(capsys, *args) == [*args, "--confirm"]
    (root / SEGMENT).unlink()
    args = ["repair", str(root)]
    assert named_command(capsys, *args, code=3) == [*args, "--confirm"]


def test_a_command_line_with_a_secret_is_not_repeated(root: Path, capsys: Said) -> None:
    secret = ["--set", "s3.access_key_id=me", "--set", "s3.secret_access_key=hush"]
    lines = notes(capsys, "expire", str(root), "--keep-last", "1", *secret)
    assert lines[-1] == "nothing was changed; to expire, and to delete orphans: kbackup expire … --confirm"


def test_findings_and_losses_name_what_comes_next(root: Path, capsys: Said) -> None:
    (root / SEGMENT).unlink()
    expected = "take the objects from a copy; to see what can be mended without: kbackup repair"
    assert notes(capsys, "verify", str(root), "--quick", code=13)[-1] == expected
    assert notes(capsys, "repair", str(root), "--confirm", code=3)[-1].endswith("read the archive back: kbackup verify")


def test_a_copy_names_the_way_to_keep_what_expired(root: Path, tmp_path: Path, capsys: Said) -> None:
    copy = ["copy", str(tmp_path / "copy"), "-a", str(root)]
    notes(capsys, *copy)
    notes(capsys, "expire", str(root), "--keep-last", "1", "--confirm")
    assert notes(capsys, *copy)[-1] == "1 restore point expired in the source; a copy with --keep keeps them"


def test_a_drill_names_the_commands_that_delete_its_names() -> None:
    report = drill_reports.report(
        prefix="drill-1.", kept=("topic drill-1.a", "group drill-1.my group"), left=("group drill-1.g: it's busy",)
    )
    assert _deletions(report) == [
        r"kafka-topics.sh --bootstrap-server broker-1:9093 --delete --topic 'drill-1\..*'",
        "kafka-consumer-groups.sh --bootstrap-server broker-1:9093 --delete --group 'drill-1.my group' "
        "--group drill-1.g",
    ]
    assert _deletions(drill_reports.report()) == []
