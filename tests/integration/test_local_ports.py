"""A stranger at the loopback ports and in the temporary folders of a local Spark session."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from tests.integration.test_startup import run_code
from tests.integration.topics import wait_until

_DRIVER = """
import os, sys
from pathlib import Path
from kbackup.spark.tasks import run_tasks, shared
from kbackup.spark.session import build_session
from tests.integration.test_local_ports import ask_for_block, send_to_rpc

SECRET = os.environ["SOME_SECRET"]

def work(task, progress):
    yield len(SECRET + task)

def is_open(path):
    return path.stat().st_mode & 0o007 and all(parent.stat().st_mode & 0o001 for parent in path.parents)

session = build_session("local[2]", eval(sys.argv[1]), 1)
assert run_tasks(session, ["task"], work) == [len(SECRET) + 4]
environment = session.sparkContext._jvm.org.apache.spark.SparkEnv.get()
blocks = environment.blockManager().blockManagerId().port()
calls = int(session.conf.get("spark.driver.port"))
with shared(session, SECRET.encode() * 100_000) as given:
    one = session.range(1, numPartitions=1).mapInArrow(lambda batches: (given(), batches)[1], "id long")
    assert one.count() == 1
    application = session.sparkContext.applicationId
    pieces = [ask_for_block(blocks, application, f"broadcast_{number}_piece0") for number in range(9)]
    print(any(SECRET.encode() in piece for piece in pieces))
    print(b"java.io.StreamCorruptedException" in send_to_rpc(calls, b"\\0\\0\\0\\4name" + b"no Java object"))
    assert session.range(9).repartition(2).count() == 9  # shuffles: blocks come to the disk
    folders = [*environment.blockManager().diskBlockManager().localDirsString(), session.sparkContext._temp_dir]
    files = [file for folder in folders for file in Path(folder).rglob("*") if file.is_file()]
    assert len(files) > 2, files
    print(sum(map(is_open, files)))
jvm = session.sparkContext._gateway.proc.pid
secret = environment.securityManager().getSecretKey()
if secret is not None:
    print(len(secret) * 4)
    for process in (jvm, "self"):
        for file in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{process}/{file}").read_bytes(), (process, file)
print(session.conf.get("spark.local.dir"))
session.stop()
"""


def _driver(conf: dict[str, str]) -> list[str]:
    """Prints of a session with `conf`: was the block sent, was the call decoded, how many files on the disk can others
    read, and the bits of Spark's own secret, if there is one."""
    done = run_code(_DRIVER, repr(conf), SOME_SECRET="hunter2-of-the-driver")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_stranger_gets_nothing_of_a_local_session() -> None:
    *answers, folder = _driver({})
    assert answers == ["False", "False", "0", "256"]
    wait_until(lambda: not Path(folder).exists())  # the JVM removes it


def test_a_stranger_gets_the_tasks_of_a_session_without_authentication() -> None:
    """The probes themselves work."""
    without = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false", "spark.local.dir": "/tmp"}
    block, call, files, _ = _driver(without)
    assert (block, call) == ("True", "True")
    assert int(files) > 0


_LOGGED = """
import sys
from kbackup.spark.session import build_session

session = build_session("local[1]", eval(sys.argv[1]), 1)
session.range(1).count()
session.stop()
"""


def test_event_logs_hold_no_secrets(tmp_path: Path) -> None:
    hidden = (
        *("spark.executorEnv.AZURE_STORAGE_KEY", "spark.executorEnv.ARCHIVE_KEY"),
        *("spark.yarn.appMasterEnv.AZURE_STORAGE_CONNECTION_STRING", "spark.hadoop.fs.azure.sas.c.a.example.com"),
    )
    conf = {name: f"hush-{number}" for number, name in enumerate(hidden)}
    conf |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path.as_uri(),
        "spark.eventLog.compress": "false",
    }
    done = run_code(_LOGGED, repr(conf))
    assert done.returncode == 0, done.stderr
    events = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"spark.executorEnv.ARCHIVE_KEY" in events
    assert b"hush-" not in events


def ask_for_block(port: int, application: str, block: str) -> bytes:
    """Ask Spark's block manager at `port` for `block` as an executor does, and return the answer."""

    def text(value: str) -> bytes:
        return struct.pack(">i", len(value)) + value.encode()

    blocks = b"\0" + text(application) + text("driver") + struct.pack(">i", 1) + text(block)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(_request(blocks))
        answer = _answer(line)
        if answer[:1] != b"\x04":
            return answer
        (stream,) = struct.unpack(">q", answer[14:22])
        line.sendall(struct.pack(">qbqi", 21, 0, stream, 0))
        return _answer(line)


def send_to_rpc(port: int, body: bytes) -> bytes:
    """Call Spark's driver with `body`, and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(_request(body))
        return _answer(line)


def _request(body: bytes) -> bytes:
    """Spark's RpcRequest: size of the frame, type 3, a number, size of the body."""
    return struct.pack(">qbqi", 21 + len(body), 3, 1, len(body)) + body


def _answer(line: socket.socket) -> bytes:
    """The frame that comes, from its type on; none where the line is closed."""
    try:
        with line.makefile("rb") as reader:
            head = reader.read(8)
            return reader.read(struct.unpack(">q", head)[0] - 8) if len(head) == 8 else b""
    except (TimeoutError, ConnectionError):
        return b""
