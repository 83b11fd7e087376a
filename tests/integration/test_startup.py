"""Spark's start on one machine: beside other work, with the modules that tasks need, and gone when it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbackup.spark.jvm import class_archive
from scripts.dev.process import HANG
from tests.integration.topics import wait_until

ROOT = Path(__file__).parents[2]
_RUN = """
import os
from kbackup.spark.tasks import run_tasks
from kbackup.spark.session import Starting

def work(task, progress):
    import sys
    yield task, "kbackup.jobs.backup.task" in sys.modules

before = dict(os.environ)
starting = Starting("local[2]", {}, 1)
session = starting()
added = os.environ.keys() - before - {"PYSPARK_PYTHON", "SPARK_LOCAL_IP"}
assert all(name.startswith("SPARK_") for name in added), added  # pyspark's own
assert sorted(run_tasks(session, list(range(20)), work)) == [(n, True) for n in range(20)]
starting.leave()
"""


def run_code(code: str, *arguments: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the variables `env` of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """A working directory in which somebody put modules, of which none is imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("socket", "pyarrow", "kbackup"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\nraise ImportError")
    yield folder
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("scripts", [False, True])
def test_tasks_run_in_workers_that_have_imported_what_they_need(tmp_path: Path, hostile: Path, scripts: bool) -> None:
    """Whether the JVM is started by Spark's scripts or not, quietly; and nothing is kept for the next start."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")} | ({"SPARK_CONF_DIR": str(tmp_path)} if scripts else {})
    done = run_code(_RUN, cwd=hostile, **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "cache").exists()


_WORKERS = """
import os, signal, sys
from kbackup.spark.tasks import run_tasks
from kbackup.spark.session import Starting

def work(task, progress):
    import sys
    yield "--ready" in sys.orig_argv, "kbackup.jobs.backup.task" in sys.modules

starting = Starting("local[2]", {}, 1)
session = starting()
if "kill" in sys.argv:
    os.kill(starting._jvm._daemon._process.pid, signal.SIGKILL)
print(run_tasks(session, [1], work))
starting.leave()
"""


def test_tasks_run_in_workers_of_the_daemon_that_was_started_beside_the_jvm(hostile: Path) -> None:
    done = run_code(_WORKERS, cwd=hostile)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(True, True)]\n", "")


def test_spark_starts_its_own_daemon_where_the_one_beside_the_jvm_died(hostile: Path) -> None:
    done = run_code(_WORKERS, "kill", cwd=hostile)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(False, True)]\n", "")


def test_spark_starts_its_own_daemon_below_a_folder_too_deep_for_sockets(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 25)
    folder.mkdir()
    done = run_code(_WORKERS, TMPDIR=str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(False, True)]\n", "")


_READY_ALONE = """
import os, signal, sys
from pathlib import Path
from kbackup.spark.ready import ReadyDaemon
daemon = ReadyDaemon(Path(sys.argv[1]))
print(daemon._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_daemon_that_spark_never_asked_for_ends_with_its_driver(tmp_path: Path) -> None:
    done = run_code(_READY_ALONE, tmp_path / "socket")
    pid = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_user_without_an_account_runs_jobs(tmp_path: Path) -> None:
    """As in OpenShift, where a container runs as a number that /etc/passwd does not have."""
    done = subprocess.run(
        ["unshare", "--user", "--map-user=1000660000", sys.executable, "-P", "-c", _RUN],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_READ_ONLY = """
set -eu
mount -t tmpfs tmpfs /tmp
mount -o remount,bind,ro /
if touch "$PLACE/written" 2>/dev/null; then exit 99; fi
exec "$@"
"""


def test_a_read_only_root_needs_a_writable_tmpdir_alone(tmp_path: Path) -> None:
    python = [sys.executable, "-P", "-c", _RUN]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _READ_ONLY, "sh", *python],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", "PLACE": str(ROOT), "TMPDIR": "/tmp"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_stays_in_tmpdir(tmp_path: Path) -> None:
    done = run_code(_RUN, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not list(tmp_path.iterdir()))  # the JVM deletes its folder when the driver has gone


_KILLED = """
import os, signal, time
from pathlib import Path
from kbackup.spark.session import Starting
from pyspark import SparkContext
starting = Starting("local[2]", {}, 1)
starting()
time.sleep(3)
os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_run_removes_what_a_killed_one_left_in_tmpdir(tmp_path: Path) -> None:
    killed = run_code(_KILLED, TMPDIR=str(tmp_path))
    assert killed.returncode == -9
    assert list(tmp_path.iterdir())
    run_code(_RUN, TMPDIR=str(tmp_path))
    wait_until(lambda: not list(tmp_path.iterdir()))


_MAPS = """
from pathlib import Path
from kbackup.spark.jvm import Jvm
from kbackup.spark.session import session_settings
settings = session_settings(None, 1, False, {})
settings["spark.driver.extraJavaOptions"] = settings["spark.driver.extraJavaOptions"].replace(WAS, NEW)
jvm = Jvm(settings)
gateway = jvm.connect()
print(NEW in Path(f"/proc/{gateway.proc.pid}/maps").read_text())
gateway.shutdown()
jvm.terminate()
"""


def test_a_jvm_maps_the_archive_of_classes_that_was_written_for_it(tmp_path: Path) -> None:
    """And starts without it, as quietly, where it is not one of this JVM."""
    archive = tmp_path / "spark.jsa"
    installed = class_archive()
    assert installed.exists(), "python -m kbackup.spark, which `make venv` runs, writes it"
    _quiet(f"from pathlib import Path\nfrom kbackup.spark.__main__ import write\nwrite(Path({str(archive)!r}))")
    assert list(tmp_path.iterdir()) == [archive]
    maps = _MAPS.replace("WAS", repr(str(installed))).replace("NEW", repr(str(archive)))
    assert _quiet(maps) == "True\n"
    archive.unlink()
    archive.write_bytes(b"x" * 4096)
    assert _quiet(maps) == "False\n"


_JARS = """
import sys
from kbackup.errors import UnreachableError
from kbackup.spark.session import build_session
settings = {"spark.jars.packages": sys.argv[1], "spark.jars.ivy": sys.argv[2], "spark.jars.ivySettings": sys.argv[3]}
try:
    build_session("local[1]", settings, 1).stop()
except UnreachableError as error:
    print(error.message)
"""
_REPOSITORY = """\
<ivysettings>
  <settings defaultResolver="m"/>
  <resolvers><ibiblio name="m" m2compatible="true" root="{}"/></resolvers>
</ivysettings>
"""


def _with_jars(repository: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a session with the jar example:tool:1.0 of a repository."""
    settings = folder / "ivysettings.xml"
    settings.write_text(_REPOSITORY.format(repository))
    return run_code(_JARS, "example:tool:1.0", folder / "ivy", settings)


def test_what_ivy_says_of_jars_that_it_fetches_stays_out_of_stderr(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "example" / "tool" / "1.0"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "tool-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    (folder / "tool-1.0.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>example</groupId><artifactId>tool</artifactId>"
        "<version>1.0</version></project>"
    )
    repository = (tmp_path / "repository").as_uri()
    for _ in ("downloaded", "there"):
        done = _with_jars(repository, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "ivy" / "jars").iterdir()) != []


def test_a_jar_that_can_not_be_fetched_is_named_with_the_reason(tmp_path: Path) -> None:
    done = _with_jars("http://127.0.0.1:1/maven2", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Spark can't get its jars: unresolved dependency: example#tool;1.0: not found; ")
    assert "Connection refused" in done.stdout


def _quiet(code: str) -> str:
    """Return the output of a program that ends well and has nothing to say on stderr."""
    done = run_code(code)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


_FAILING = """
import sys
from kbackup.errors import UnreachableError
from kbackup.spark.session import Starting
starting = Starting(sys.argv[1], {}, 1)
try:
    starting()
except UnreachableError as error:
    print(error.message, error.hint)
starting.leave()
"""


@pytest.mark.parametrize(
    ("master", "java", "words"),
    [("local[*]", "/nowhere", "Spark can't be started"), ("local[x]", "", "java.lang.IllegalArgumentException: ")],
    ids=["no-java", "master"],
)
def test_start_error_of_spark_is_raised_to_the_caller(master: str, java: str, words: str) -> None:
    done = run_code(_FAILING, master, cwd=None, **({"JAVA_HOME": java} if java else {}))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark can't be started: ")
    assert words in done.stdout
    assert "JAVA_HOME" in done.stdout


_WORKING = """
import time
from kbackup.spark.tasks import run_tasks
from kbackup.spark.session import Starting

def work(task, progress):
    open(task, "w").close()
    time.sleep(600)
    yield 0

run_tasks(Starting("local[2]", {}, 1)(), [TASK], work)
"""


def test_nothing_is_left_of_a_driver_that_was_killed_while_a_task_runs(tmp_path: Path) -> None:
    """The JVM has a process group of its own."""
    begun = tmp_path / "begun"
    code = _WORKING.replace("TASK", repr(str(begun)))
    env, argv = {**os.environ, "PYTHONPATH": str(ROOT)}, [sys.executable, "-c", code]
    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL, start_new_session=True) as driver:
        try:
            wait_until(begun.exists)
            assert len(_session(driver.pid)) > 3
        finally:
            driver.kill()
    wait_until(lambda: _session(driver.pid) == [])


def _session(leader: int) -> list[int]:
    """The processes of a session that run (proc(5))."""
    running = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = file.read_text().rpartition(") ")[2].split()[:4]
            if session == str(leader) and state not in "ZX":
                running.append(int(file.parent.name))
    return running


_UNUSED = """
import gc, time, warnings
from pathlib import Path
from kbackup.spark.session import Starting

warnings.simplefilter("error")
starting = Starting("local[1]", {}, 1)
pid = starting._jvm._process.pid
starting.leave()
assert not Path(f"/proc/{pid}").exists()
while starting._thread.is_alive():
    time.sleep(0.05)
del starting
gc.collect()
"""


def test_nothing_is_left_of_a_session_that_nobody_used() -> None:
    assert _quiet(_UNUSED) == ""
