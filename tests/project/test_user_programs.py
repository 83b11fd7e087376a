"""Programs of users that use `import kbackup`: they are not told of what is ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbackup.store import open_store
from tests.support.schema_archive import make_schema_archive

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


def test_an_archive_is_verified_by_spark():
    assert not kbackup.verify({{"archive": ADDRESS}}).findings
    assert kbackup.status({{"archive": ADDRESS}}, max_age="26h").level


def test_a_cluster_that_is_not_there_is_named():
    source = {{"bootstrap.servers": "127.0.0.1:1"}}
    with pytest.raises(kbackup.errors.UnreachableError):
        kbackup.backup({{"archive": ADDRESS, "source": source}})
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
