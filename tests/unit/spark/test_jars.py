"""Jars that Spark fetched are the locked ones, or nothing runs with them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kbackup.errors import RefusedError
from kbackup.spark.delta import DELTA_LOCK, session_conf
from kbackup.spark.jvm import LOCK, check_jars


def test_only_locked_jars_pass(tmp_path: Path) -> None:
    good, evil = tmp_path / "go od.jar", tmp_path / "evil.jar"
    good.write_bytes(b"good")
    evil.write_bytes(b"evil")
    lock = tmp_path / "lock"
    lock.write_text(f"{hashlib.sha256(b'good').hexdigest()}  other-name.jar\n")
    check_jars([good.as_uri(), str(good)], lock)
    with pytest.raises(RefusedError, match=r"evil\.jar is not the jar that kbackup was tested with"):
        check_jars([good.as_uri(), evil.as_uri()], lock)


def test_jars_for_delta_are_locked() -> None:
    assert session_conf({}, ("s3://bucket/table",))[LOCK] == str(DELTA_LOCK)
    assert any(line.endswith("  delta-spark_4.1_2.13-4.3.1.jar") for line in DELTA_LOCK.read_text().splitlines())
    assert LOCK not in session_conf({"spark.jars": "mine.jar"}, ("s3://bucket/table",))
