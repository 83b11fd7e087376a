"""`kbackup copy` through the command line."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from tests.support.archives import make_archive
from tests.support.local_http import Quiet, serving
from tests.support.printed import Kbackup


def numbers(address: str) -> list[int]:
    return [p.number for p in open_archive(open_store(address)).restore_points]


def test_a_copy_takes_every_restore_point_once(mine: str, tmp_path: Path, kbackup: Kbackup) -> None:
    target = str(tmp_path / "copy")
    printed = kbackup("copy", target, "--archive", mine)
    assert printed.out.startswith(f"{target}: 2 restore points copied, ")
    assert "the newest restore point is 2; " in printed.out
    assert printed.err == ""
    assert numbers(target) == [1, 2]
    again = kbackup("copy", target, "-a", mine, "--json").json
    assert (again["restore_points"], again["newest"], again["objects"]) == ([], 2, 0)


def test_copy_drops_points_that_the_source_expired_unless_kept(mine: str, tmp_path: Path, kbackup: Kbackup) -> None:
    follows, keeps, alone = (str(tmp_path / name) for name in ("follows", "keeps", "alone"))
    source = ["--archive", mine]
    kbackup("label", "1", "first", *source)
    for place in (follows, keeps):
        kbackup("copy", place, *source)
    kbackup("copy", alone, "--restore-point", "first", *source)
    assert numbers(alone) == [1]
    kbackup("expire", *source, "--keep-last", "1", "--confirm")
    assert "nothing new, 0 objects" in kbackup("copy", keeps, "--keep", *source).out
    dropping = kbackup("copy", follows, *source)
    assert "nothing new, 1 restore point dropped, 0 objects" in dropping.out
    assert dropping.err == "1 restore point expired in the source; a copy with --keep keeps them\n"
    assert (numbers(follows), numbers(keeps)) == ([2], [1, 2])
    assert open_archive(open_store(keeps)).find_point("first").number == 1


def test_a_promoted_copy_is_not_copied_to_any_more(mine: str, tmp_path: Path, kbackup: Kbackup) -> None:
    target, root = str(tmp_path / "copy"), Path(mine)
    assert "is not a copy" in kbackup("promote", mine, code=1).err
    kbackup("copy", target, "-a", mine)
    (root / "archive.json").rename(tmp_path / "lost")
    assert f"is an independent archive; it was a copy of {root}" in kbackup("promote", target).out
    (tmp_path / "lost").rename(root / "archive.json")
    files = [path for path in Path(target).rglob("*") if path.is_file() and path.name != "lock.json"]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert "is an archive of its own, not a copy" in kbackup("copy", target, "-a", mine, code=1).err
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_unusable_sources_and_destinations_are_refused(mine: str, tmp_path: Path, kbackup: Kbackup) -> None:
    kbackup("copy", mine, "-a", mine, code=2)
    kbackup("copy", str(tmp_path / "b"), "-a", str(tmp_path / "nothing"), code=10)
    make_archive(open_store(str(tmp_path / "another")), copied=False)
    assert "is another archive" in kbackup("copy", str(tmp_path / "another"), "-a", mine, code=1).err
    kbackup("copy", "-a", mine, code=2)
    (tmp_path / "file").touch()
    err = kbackup("copy", str(tmp_path / "file"), "-a", mine, code=1).err
    assert "hint: name a directory: the path leads through a file" in err


def test_a_copy_goes_to_another_s3_server_with_its_own_settings(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kbackup: Kbackup
) -> None:
    profiles = tmp_path / "credentials"
    profiles.write_text("[other]\naws_access_key_id = of-profile\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    signatures: list[str] = []

    class Refusing(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            signatures.append(self.headers["Authorization"])
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 (as the handler wants it)

    keys = {"s3.endpoint_url": "http://127.0.0.1:1", "s3.region": "eu-west-1"}
    keys |= {"s3.access_key_id": "of-source", "s3.secret_access_key": "secret"}
    settings = [f"--set={path}={text}" for path, text in keys.items()]
    with serving(Refusing) as there:
        elsewhere = ("--to-s3-endpoint-url", there, "--to-s3-profile", "other")
        kbackup("copy", "s3://bucket/copy", "-a", mine, *settings, *elsewhere, code=14)

    assert signatures
    for signature in signatures:
        assert re.search(r"Credential=of-profile/\d+/eu-west-1/s3/", signature), signature


@pytest.mark.exhaustive
@pytest.mark.parametrize("destination", ["archive/", "./archive", "archive/../archive", "archive/inside", "link", "."])
@pytest.mark.parametrize("more", [[], ["--restore-point", "2"]])
def test_the_archive_is_no_destination(
    mine: str, destination: str, more: list[str], monkeypatch: pytest.MonkeyPatch, kbackup: Kbackup
) -> None:
    root = Path(mine)
    monkeypatch.chdir(root.parent)
    (root.parent / "link").symlink_to(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    printed = kbackup("copy", destination, "--archive", "archive", *more, code=2)
    assert f"destination {destination} " in printed.err
    assert "name a destination outside the archive" in printed.err
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert printed.out == ""
