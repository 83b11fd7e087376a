"""Programs of users that use `import kbackup`: they are not told of what is ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbackup.store import open_store
from tests.support.schema_archive import make_schema_archive

ROOT = Path(__file__).parents[2]
_TESTS = """
import kbackup
import pytest

ADDRESS = "{address}"


def test_an_archive_is_read():
    archive = kbackup.open_archive(ADDRESS, config={{}})
    assert archive.topics == ("carts", "events", "orders", "plain")
    assert sum(batch.num_rows for batch in archive.records("orders")) == 4
    assert archive.overview().restore_points == 2
    assert archive.schemas() is not None
    assert [record.key for record in archive.records("orders", decode=True)][:3] == [1, 2, 3]
    assert len(archive.frame("orders")) == len(archive.frame("orders", kind="polars")) == 4


def test_an_archive_is_verified_by_spark():
    assert not kbackup.verify({{"archive": ADDRESS}}).findings
    assert kbackup.status({{"archive": ADDRESS}}, max_age="26h").level


def test_a_cluster_that_is_not_there_is_named():
    source = {{"bootstrap.servers": "127.0.0.1:1"}}
    with pytest.raises(kbackup.errors.UnreachableError):
        kbackup.backup({{"archive": ADDRESS, "source": source}})
"""


_PROGRAM = """
from datetime import UTC, datetime

import kbackup

archive = kbackup.open_archive("s3://backups/kafka")
for batch in archive.records("orders"):
    reveal_type(batch)
for record in archive.records("orders", decode=True):
    reveal_type(record.value_error)
reveal_type(archive.frame("orders", kind="arrow"))
kbackup.backup("kbackup.toml", topics=["orders"], max_age="26h", label="nightly")
kbackup.restore("kbackup.toml", to_time=datetime.now(UTC), map={"orders": "practice"}, dry_run=True)
settings: kbackup.RestoreSettings = {"topics": ["orders"]}
kbackup.restore("kbackup.toml", **settings)
kbackup.backup("kbackup.toml", topiks=["orders"])
kbackup.backup("kbackup.toml", compression="gzip")
kbackup.restore("kbackup.toml", map=["orders"])
kbackup.status("kbackup.toml", max_age=None)
archive.frame("orders", kind="excel")
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("user") / "archive")
    make_schema_archive(open_store(folder))
    return folder


def test_a_users_tests_pass_where_warnings_are_errors(address: str, tmp_path: Path) -> None:
    """Also those of imports, and those of what the garbage collector finds open."""
    (tmp_path / "test_mine.py").write_text(_TESTS.format(address=address))
    command = [sys.executable, "-W", "error", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert "3 passed" in done.stdout
    assert "warning" not in done.stdout


def test_a_type_checker_tells_a_user_of_wrong_arguments(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(_PROGRAM)
    # The cache of this project's own checks: kbackup is read from there.
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"), "--no-pretty"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    lines = [line.partition("mine.py:")[2] for line in done.stdout.splitlines() if "mine.py:" in line]
    revealed = [line.split('"')[1].rpartition(".")[2] for line in lines if "Revealed type" in line]
    assert revealed == ["RecordBatch", "str", "Table"], done.stdout
    errors = [line for line in lines if " error: " in line]
    wrong = ["topiks", "compression", "map", "max_age", "frame"]
    numbers = [int(line.partition(":")[0]) for line in errors]
    first = _PROGRAM.splitlines().index('kbackup.backup("kbackup.toml", topiks=["orders"])') + 1
    assert numbers == list(range(first, first + 5)), done.stdout
    for word, line in zip(wrong, errors, strict=True):
        assert word in line, done.stdout


def test_kbackup_says_that_it_has_types() -> None:
    assert (ROOT / "kbackup" / "py.typed").exists()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text()
