"""`kbackup copy` through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive.reader import open_archive
from kbackup.cli.common.frame import FlagValues, Frame, load_config
from kbackup.cli.common.output import Reporter
from kbackup.cli.copy import _target
from kbackup.config import Setting, SettingOrigin
from kbackup.store import open_store
from kbackup.store.s3 import S3Store
from tests.support.archives import make_archive

Said = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_archive(open_store(str(tmp_path / "archive")))
    return tmp_path / "archive"


def test_a_copy(root: Path, tmp_path: Path, capsys: Said) -> None:
    target = str(tmp_path / "copy")
    assert cli.main(["copy", target, "--archive", str(root)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{target}: 2 restore points copied, ")
    assert "the newest restore point is 2; " in out
    assert err == ""
    assert [p.number for p in open_archive(open_store(target)).restore_points] == [1, 2]
    assert cli.main(["copy", target, "-a", str(root), "--json"]) == 0
    told: Any = json.loads(capsys.readouterr().out)
    assert (told["restore_points"], told["newest"], told["objects"]) == ([], 2, 0)


def numbers(address: str) -> list[int]:
    return [p.number for p in open_archive(open_store(address)).restore_points]


def test_copy_drops_points_that_the_source_expired_unless_kept(root: Path, tmp_path: Path, capsys: Said) -> None:
    follows, keeps, alone = (str(tmp_path / name) for name in ("follows", "keeps", "alone"))
    source = ["--archive", str(root)]
    assert cli.main(["label", "1", "first", "--archive", str(root)]) == 0
    for place in (follows, keeps):
        assert cli.main(["copy", place, *source]) == 0
    assert cli.main(["copy", alone, "--restore-point", "first", *source]) == 0
    assert numbers(alone) == [1]
    assert cli.main(["expire", *source, "--keep-last", "1", "--confirm"]) == 0
    capsys.readouterr()
    assert cli.main(["copy", keeps, "--keep", *source]) == 0
    assert "nothing new, 0 objects" in capsys.readouterr().out
    assert cli.main(["copy", follows, *source]) == 0
    assert "nothing new, 1 restore point dropped, 0 objects" in capsys.readouterr().out
    assert (numbers(follows), numbers(keeps)) == ([2], [1, 2])
    assert open_archive(open_store(keeps)).find_point("first").number == 1


def test_a_promoted_copy(root: Path, tmp_path: Path, capsys: Said) -> None:
    target = str(tmp_path / "copy")
    assert cli.main(["promote", str(root)]) == 1
    assert "is not a copy" in capsys.readouterr().err
    assert cli.main(["copy", target, "-a", str(root)]) == 0
    (root / "archive.json").rename(tmp_path / "lost")
    assert cli.main(["promote", target]) == 0
    assert f"is an independent archive; it was a copy of {root}" in capsys.readouterr().out
    (tmp_path / "lost").rename(root / "archive.json")
    before = {path: path.stat().st_mtime_ns for path in Path(target).rglob("*") if path.is_file()}
    assert cli.main(["copy", target, "-a", str(root)]) == 1
    assert "is an archive of its own, not a copy" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in before if p.name != "lock.json"} == {
        p: at for p, at in before.items() if p.name != "lock.json"
    }


def test_unusable_sources_and_destinations_are_refused(root: Path, tmp_path: Path, capsys: Said) -> None:
    assert cli.main(["copy", str(root), "-a", str(root)]) == 2
    assert cli.main(["copy", str(tmp_path / "b"), "-a", str(tmp_path / "nothing")]) == 10
    make_archive(open_store(str(tmp_path / "another")))
    assert cli.main(["copy", str(tmp_path / "another"), "-a", str(root)]) == 1
    assert "is another archive" in capsys.readouterr().err
    assert cli.main(["copy", "-a", str(root)]) == 2
    (tmp_path / "file").touch()
    assert cli.main(["copy", str(tmp_path / "file"), "-a", str(root)]) == 1
    assert "hint: name a directory: the path leads through a file" in capsys.readouterr().err


def test_another_s3_server(root: Path) -> None:
    origin = SettingOrigin("flag", "--set")
    keys = {"archive": str(root), "s3.endpoint_url": "http://here:1", "s3.region": "eu-west-1"}
    keys |= {"s3.access_key_id": "a", "s3.secret_access_key": "b"}
    loaded = load_config(FlagValues(settings=[Setting(path, text, origin) for path, text in keys.items()]))
    frame = Frame(loaded, Reporter())
    store = _target(frame, "s3://bucket/copy", {"endpoint_url": "http://there:2", "profile": "other"})
    assert isinstance(store, S3Store)
    options = store._bucket.options
    assert (options.endpoint_url, options.profile, options.region) == ("http://there:2", "other", "eu-west-1")
    assert (options.access_key_id, options.secret_access_key) == ("", "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("destination", ["archive/", "./archive", "archive/../archive", "archive/inside", "link", "."])
@pytest.mark.parametrize("more", [[], ["--restore-point", "2"]])
def test_the_archive_is_no_destination(
    root: Path, destination: str, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(root.parent)
    (root.parent / "link").symlink_to(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert cli.main(["copy", destination, "--archive", "archive", *more]) == 2
    out, err = capsys.readouterr()
    assert f"destination {destination} " in err
    assert "name a destination outside the archive" in err
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert out == ""
