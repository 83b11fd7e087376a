"""The daemon that Spark's Python workers are forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbackup.errors import from_text
from kbackup.spark.daemon import preload, without_zips

_ALONE = """
import sys
from pathlib import Path
from kbackup.spark.daemon import NEEDED, preload
preload()
assert not [name for name in NEEDED if name not in sys.modules]
assert "kbackup.native.fill" in sys.modules
assert not [name for name in sys.modules if name.startswith("kbackup.cli")]
print(*(thread.joinpath("comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()))
"""


@pytest.mark.exhaustive
def test_imports_before_the_fork_start_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", _ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # pyarrow's allocator looks after forks itself (pthread_atfork): a child goes on without its thread
    assert len([name for name in done.stdout.split() if name != "jemalloc_bg_thd"]) == 1, done.stdout
    assert done.stderr == ""


def test_an_import_prints_nothing_to_the_daemons_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talks_when_imported.py").write_text("print('hello')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("gc.freeze", lambda: None)
    preload(["talks_when_imported"])
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n")


def test_failed_imports_are_named_through_sparks_traceback() -> None:
    with pytest.raises(RuntimeError) as raised:
        preload(["kbackup_no_such_module"])
    error = from_text(f"Error from python worker:\n  RuntimeError: {raised.value}\nPYTHONPATH was:")
    assert error is not None
    assert "a Python worker can't import kbackup_no_such_module" in error.message
    assert sys.executable in error.hint


def test_zips_and_jars_of_an_installed_pyspark_leave_the_path() -> None:
    site = "/env/lib/python3.11/site-packages"
    added = [f"{site}/pyspark/python/lib/{name}.zip" for name in ("pyspark", "py4j-src")]
    jar = f"{site}/pyspark/jars/spark-core.jar"
    rest = ["/repo", "/usr/lib/python311.zip", "/spark/python/lib/pyspark.zip"]
    assert without_zips([*added, jar, *rest, site]) == [*rest, site]
    assert without_zips([*added, jar, *rest]) == [*added, jar, *rest], "no pyspark is installed here"
