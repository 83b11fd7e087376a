"""Spark's JVM and session: command line, settings, jars, and the lines that are passed on."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, accumulators

from kbackup.errors import RefusedError, UnreachableError, UsageError
from kbackup.spark.delta import session_conf
from kbackup.spark.jars import spark_release, table_jars
from kbackup.spark.jvm import LIGHT, LOCK, REDACTION, check_jars, command_line, spark_home, without_secrets
from kbackup.spark.jvm_output import JarResolution, pass_on
from kbackup.spark.session import build_session, session_settings, silence_ends
from kbackup.spark.tasks import from_spark

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"-Dx='a b' {LIGHT}",
    "spark.hidden": "secret",
}
MAIN = "org.apache.spark.deploy.SparkSubmit"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark and a JVM that are files only."""
    (tmp_path / "jars").mkdir()
    for name in ("z", "spark-mllib_2.13-4", "spark-launcher_2.13-4", "spark-catalyst_2.13-4"):
        (tmp_path / "jars" / f"{name}.jar").write_bytes(b"")
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path


def is_left_to_scripts(home: Path, settings: dict[str, str]) -> bool:
    return command_line(home, settings, {})[0] == str(home / "bin" / "spark-submit")


def test_command_line_shows_what_may_be_read(home: Path) -> None:
    command = command_line(home, SETTINGS, {"spark.shown": "a b"})
    assert command[:2] == [f"{home}/jdk/bin/java", "-cp"]
    assert {"-Xmx1g", "-Dx=a b", *LIGHT.split()} <= set(command)
    assert command[-4:] == [MAIN, "--conf", "spark.shown=a b", "pyspark-shell"]
    assert not any("secret" in word for word in command)


def test_jars_of_most_classes_come_first_and_mllib_never(home: Path) -> None:
    files = command_line(home, SETTINGS, {})[2].split(os.pathsep)
    names = [Path(file).name for file in files]
    assert names == ["spark-catalyst_2.13-4.jar", "spark-launcher_2.13-4.jar", "z.jar"]


OF_OTHER_RELEASES = {
    # Spark 4.0 and 4.1
    "-Djdk.reflect.useDirectMethodHandle=false",
    # since Spark 4.1
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
    # since Spark 4.2
    "--sun-misc-unsafe-memory-access=allow",
}
"""Options that the launcher of one of the releases does not give."""


@pytest.mark.exhaustive
def test_the_options_are_those_of_sparks_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of Spark may have others: copy them."""
    spark = spark_home()
    (jar,) = (spark / "jars").glob("spark-launcher_*.jar")
    command = command_line(spark, SETTINGS | {"spark.driver.extraJavaOptions": LIGHT}, {})
    scala = jar.name.split("_")[1].split("-")[0]
    launcher = [command[0], "-cp", f"{spark}/jars/*", "org.apache.spark.launcher.Main", MAIN, "pyspark-shell"]
    environment = {**os.environ, "SPARK_HOME": str(spark), "SPARK_SCALA_VERSION": scala}
    printed = subprocess.run(launcher, env=environment, capture_output=True, check=True, text=True).stdout
    words = printed.lstrip("\0\n").split("\0")
    options = {word for word in words[3 : words.index(MAIN)] if not word.startswith("-Xmx")}
    ours = set(command[3 : command.index(MAIN)]) - {"-Xmx1g", *LIGHT.split()}
    assert options - {"--add-modules=jdk.incubator.vector"} <= ours
    assert ours - options <= OF_OTHER_RELEASES


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        *(({name: "/etc/spark"}, {}) for name in ("SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "HADOOP_CONF_DIR")),
        *(({}, {f"spark.driver.{name}": "-XX:+UseG1GC"}) for name in ("extraClassPath", "extraJavaOptions")),
        ({"JAVA_HOME": "/nowhere"}, {}),
    ],
)
def test_what_the_scripts_heed_is_left_to_them(
    home: Path, variables: dict[str, str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_left_to_scripts(home, SETTINGS)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_left_to_scripts(home, SETTINGS | settings)


def test_a_conf_folder_is_left_to_the_scripts(home: Path) -> None:
    (home / "conf").mkdir()
    assert is_left_to_scripts(home, SETTINGS)


def test_arguments_for_the_scripts_reach_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars 'a b.jar' pyspark-shell")
    command = command_line(home, SETTINGS, {"spark.shown": "a b"})
    assert command[1:] == ["--conf", "spark.shown=a b", "--jars", "a b.jar", "pyspark-shell"]


_SCRIPT = """
import os
from kbackup.spark.jvm import Jvm

forks = []
os.register_at_fork(before=lambda: forks.append(1))
Jvm({}).terminate()
print(forks)
"""


def test_starting_the_jvm_runs_no_hook_into_forks() -> None:
    """A hook that another thread registers between a fork's two halves releases a lock that it never took: a traceback
    of Python's on the terminal, from a command that works."""
    environment = {**os.environ, "SPARK_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def passed_on(text: str, capfd: pytest.CaptureFixture[str], *, unheard: bool = False) -> list[list[str]]:
    """Return the words of each line that is passed on of what a JVM writes, which was left where it is `unheard`."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    left = threading.Event()
    if unheard:
        left.set()
    pass_on(reading, left, JarResolution())
    return [line.split() for line in capfd.readouterr().err.splitlines()]


def test_the_log_of_a_jvm_that_was_ended_within_its_start_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    text = "spark ERROR SparkContext: Error initializing SparkContext.\njava.lang.IllegalStateException: Shutdown\n"
    assert len(passed_on(text, capfd)) == 2
    assert passed_on(text, capfd, unheard=True) == []


def test_a_traceback_that_ends_the_stream_is_shown_as_printable_text(capfd: pytest.CaptureFixture[str]) -> None:
    cut = 'Traceback (most recent call last):\n  File "\x1b[2J", line 1, in main\n'
    assert passed_on(cut, capfd) == [line.split() for line in cut.replace("\x1b", "\\x1b").splitlines()]


def test_tracebacks_of_cancelled_tasks_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """Their worker's line to the JVM ended. Other tracebacks are passed on, and what comes between."""
    frames = 'Traceback (most recent call last):\n  File "{}", line 1, in main\n    work()\n'
    daemon, other = frames.format("/x/pyspark/daemon.py"), frames.format("/x/own.py")
    dropped = f"{daemon}EOFError\n{daemon}BrokenPipeError: [Errno 32] Broken pipe\n"
    dropped += dropped[dropped.rindex("  File") :]  # its beginning went with one that was printed at once
    kept = f"{daemon}ValueError: 1\n{other}EOFError\na word\n{other}"
    assert passed_on(dropped + kept, capfd) == [line.split() for line in kept.splitlines()]
    for cut in (daemon, "Traceback (most recent call last):\n"):
        assert passed_on(cut, capfd) == [], "the daemon ends its workers in the middle of what they print"


def test_the_jvms_command_line_has_no_secrets() -> None:
    """Whatever Spark hides in its logs, and what only we know to be one."""
    hidden = {
        "spark.hadoop.fs.s3a.secret.key": "hush",
        "spark.hadoop.fs.s3a.encryption.key": "hush",
        "spark.hadoop.fs.azure.account.key.mine.dfs.core.windows.net": "hush",
        "spark.hadoop.fs.azure.sas.container.mine.blob.core.windows.net": "hush",
        "spark.jars.repositories": "https://hush@repo.example.com/maven",
        "spark.executorEnv.AZURE_STORAGE_KEY": "hush",
        "spark.executorEnv.KBACKUP_AZURE_CONNECTION_STRING": "hush",
        "spark.executorEnv.ARCHIVE_KEY": "hush",
        "spark.yarn.appMasterEnv.AZURE_STORAGE_CONNECTION_STRING": "hush",
        "spark.hadoop.our.table": "https://mine.blob.core.windows.net/c?sp=r&sig=hush",
    }
    told = {"spark.app.name": "kbackup", "spark.hadoop.fs.s3a.endpoint": "https://s3.example.com"}
    assert without_secrets(told | hidden) == told


def test_spark_hides_in_its_logs_and_pages_what_the_command_line_hides() -> None:
    """By one expression, which Java's syntax takes as Python's does; a user's own is used instead."""
    settings = session_settings("local[2]", 1, False, {})
    assert settings["spark.redaction.regex"] == REDACTION
    assert without_secrets(settings)["spark.redaction.regex"] == REDACTION
    own = session_settings("local[2]", 1, False, {"spark.redaction.regex": "mine"})
    assert own["spark.redaction.regex"] == "mine"


def _printed(server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the server of accumulators prints where its client's line ends."""
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    with socket.create_connection(server.server_address) as client:
        client.sendall(b"token")
    server.handle_request()
    return printed.getvalue()


def test_pyspark_4_1_prints_a_traceback_where_the_jvm_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = accumulators.UpdateRequestHandler
    with accumulators.AccumulatorTCPServer(("127.0.0.1", 0), handler, "token") as server:
        plain = _printed(server, monkeypatch)
        assert "EOFError" in plain, "this release prints none: remove `handle_error` from `silence_ends`"
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server))
        silence_ends(session)
        assert _printed(server, monkeypatch) == ""


def test_pyspark_4_1_holds_on_to_a_jvm_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: Any = SimpleNamespace(jvm="ended")
    another: Any = SimpleNamespace(jvm="another")
    monkeypatch.setattr(SparkContext, "_gateway", ended)
    SparkContext._ensure_initialized(gateway=another)
    reason = "this release takes another gateway: remove the class's attributes from `forget_jvm`"
    assert SparkContext._gateway is ended, reason


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
    assert session_conf({}, ("s3://bucket/table",))[LOCK] == str(table_jars(spark_release()).lock)
    assert LOCK not in session_conf({"spark.jars": "mine.jar"}, ("s3://bucket/table",))


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="jobs don't run over Spark Connect"):
        build_session(None, {"spark.remote": "sc://there"}, 4)
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    with pytest.raises(UsageError, match=r"unset spark\.remote and SPARK_REMOTE"):
        build_session(None, {}, 4)


def test_an_error_that_a_task_raised_comes_back_as_it_was() -> None:
    raised = UnreachableError("worker far: s3://lab: no answer", "wait")
    found = from_spark(RuntimeError(f"RuntimeError: {raised.marker()}"))
    assert (type(found), found.message, found.hint) == (UnreachableError, raised.message, "wait")
