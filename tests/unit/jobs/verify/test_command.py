"""The command `kbackup verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbackup import cli
from tests.support.verifications import SEGMENT

pytestmark = pytest.mark.exhaustive(keep=2)


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 0
    assert "0 findings; 2 restore points" in capsys.readouterr().out
    (root / SEGMENT).unlink()
    assert cli.main(["verify", str(root), "--quick", "-q"]) == 13
    out, _ = capsys.readouterr()
    assert f"{SEGMENT}: is missing\n  hint: take it from a bucket version" in out
    assert "1 finding;" in out
    assert cli.main(["verify", "-a", str(root), "--quick", "--json"]) == 13
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == [
        {
            "file": SEGMENT,
            "what": "is missing",
            "hint": "take it from a bucket version or another copy of the archive",
        }
    ]


def test_the_commands_refusals(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path / "nothing"), "--quick"]) == 10
    assert "hint: check the address" in capsys.readouterr().err
    assert cli.main(["verify", str(root), "--quick", "--restore-point", "first"]) == 2
    assert "there is no restore point first" in capsys.readouterr().err
    closed = ["--s3-endpoint-url", "http://127.0.0.1:9", "--set", "s3.max_attempts=1", "--s3-region", "x"]
    keys = ["--set", "s3.access_key_id=a", "--set", "s3.secret_access_key=b"]
    assert cli.main(["verify", "s3://bucket/x", "--quick", *closed, *keys]) == 14
    assert "hint: " in capsys.readouterr().err
