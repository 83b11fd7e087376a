"""`kbackup mirror status`: what it prints of an archive's flows, for people and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kbackup.archive.reader import Archive
from kbackup.cli import main
from kbackup.jobs.mirror.apply.pending import Applied, Recreated
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic, write_status
from kbackup.jobs.mirror.status import after_error, after_round, first_status
from kbackup.store import S3Options, open_store
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.mirrors import flow_of


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """With a flow that has applied restore point 1 of 2 and holds a topic back."""
    made = make_archive(open_store(str(tmp_path_factory.mktemp("archive")), S3Options()))
    positions = {
        TopicPartition("A.orders", 0): AppliedPosition(1, 10),
        TopicPartition("A.orders", 1): AppliedPosition(1, 12),
    }
    held_back = (Recreated("clicks", "A.clicks", 2, held_back=True),)
    applied = Applied(1, 22, 2048, positions, recreated=held_back, held_back=held_back, seconds=1.5)
    topics = [RemoteTopic("clicks", "A.clicks", 1), RemoteTopic("orders", "A.orders", 3)]
    refused = {"acls": ("the target has no authorizer",)}
    first = first_status(flow_of(), made.info.id, None)
    status = after_round(first, made.manifest(1), topics, applied, refused)
    write_status(made.store, after_error(status, "B did not answer"))
    return made


def test_for_people(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", archive.store.url]) == 0
    out, err = capsys.readouterr()
    assert "A->B" in out
    assert "restore point 1 of 2" in out
    assert "44 records" in out  # 20 of clicks, 24 of orders
    assert "22 records (2.0 KiB) in 1.5s" in out
    assert ["orders", "A.orders", "3", "24", "-"] in [line.split() for line in out.splitlines()]
    assert "is held back (kbackup.on.recreate = stop)" in out
    assert "acls: the target has no authorizer" in err
    assert "the last round failed: B did not answer" in err


def test_applied_positions(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", archive.store.url, "--partitions"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row[:1] == ["orders"]][1:] == [
        ["orders", "0", "10"],
        ["orders", "1", "12"],
        ["orders", "2", "0"],
    ]
    assert ["clicks", "0", "-"] in rows


def test_for_machines(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", "--json", "-a", archive.store.url, "--flow", "A->B"]) == 0
    document = json.loads(capsys.readouterr().out)
    (flow,) = document["flows"]
    assert (flow["flow"], flow["restore_point"], flow["newest_restore_point"]) == ("A->B", 1, 2)
    assert flow["records_behind"] == 44
    assert flow["seconds_behind"] > 0
    assert flow["topics"][1] == {
        "topic": "orders",
        "remote": "A.orders",
        "incarnation": 1,
        "applied": [10, 12, 0],
        "records_behind": 24,
        "held_back": "",
    }


def test_state_elsewhere(archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", archive.store.url, "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no flow of this archive has begun\n"
    state = open_store(str(tmp_path), S3Options())
    write_status(state, first_status(flow_of(), archive.info.id, None))
    assert main(["mirror", "status", archive.store.url, "--state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "restore point - of 2" in out
    assert re.search(r"^behind: +-, ", out, re.MULTILINE), "the topics are not known yet"
    assert re.search(r"^last round: +-$", out, re.MULTILINE)
    assert main(["mirror", "status", archive.store.url, "--state", str(tmp_path), "--json"]) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert flow["records_behind"] is None


def test_an_unknown_flow(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", archive.store.url, "--flow", "A->C"]) == 2
    assert "hint: did you mean A->B?" in capsys.readouterr().err
