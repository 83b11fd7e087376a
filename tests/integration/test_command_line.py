"""`python -m kbackup` as a user runs it: a process of its own, configured by file and environment."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from pathlib import Path

from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.integration import topics
from tests.support.truth import Position, assert_restored, commit, positions, read_topic

ROOT = Path(__file__).parents[2]


def _run(
    arguments: list[str], cwd: Path, env: dict[str, str], stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KBACKUP_", "AWS_"))}
    return subprocess.run(
        [sys.executable, "-m", "kbackup", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=240,
        check=False,
    )


class _Terminal:
    """A terminal of 80 columns for stderr. `lines`: what was written to it, without what steers it; a bar is one line
    each time it is drawn."""

    def __init__(self) -> None:
        self._screen, self.end = pty.openpty()
        termios.tcsetwinsize(self.end, (24, 80))
        self._text = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(self._screen, 1 << 16):
                self._text += chunk

    def lines(self) -> list[str]:
        os.close(self.end)
        self._thread.join()
        os.close(self._screen)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._text.decode())
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_backup_by_file_and_restore_by_environment(
    broker: Broker, bucket: Bucket, topic_name: str, tmp_path: Path
) -> None:
    topics.make_plain(broker, topic_name)
    group, source = f"group-{topic_name}", read_topic(broker.bootstrap, topic_name)
    commit(broker.bootstrap, group, {(topic_name, 0): Position(7, "here")})
    (tmp_path / "kbackup.toml").write_text(
        f"""
        archive = "{bucket.url}/some/prefix"
        [source]
        "bootstrap.servers" = "${{env:BROKER}}"
        [backup]
        topics = ["{topic_name}"]
        groups = ["{group}"]
        [spark]
        master = "local[1]"
        """
    )
    env = {**bucket.env, "BROKER": broker.bootstrap}

    terminal = _Terminal()
    done = _run(["backup"], tmp_path, {**env, "TERM": "xterm"}, terminal.end)
    shown = terminal.lines()
    assert done.returncode == 0, shown
    assert f"restore point 1 of {bucket.url}/some/prefix: 80 new records" in done.stdout
    assert not [line for line in (*shown, done.stdout) if bucket.server.secret_key in line]
    _check_shown(shown, broker)

    topics.produce(broker, topic_name, 1, topics.numbered(10))
    topics.delete_records(broker, topic_name, {1: 45})
    done = _run(["backup"], tmp_path, env)
    assert done.returncode == 3, done.stderr
    assert f"warning: loss: offsets 40 to 44 of {topic_name}-1" in done.stderr

    settings = {
        **bucket.env,
        "KBACKUP_ARCHIVE": f"{bucket.url}/some/prefix",
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_RESTORE_BACKUP": "1",
        "KBACKUP_RESTORE_MAP": f"{topic_name}=back-{topic_name}",
        "KBACKUP_SPARK_MASTER": "local[1]",
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = _run(["restore"], elsewhere, settings)
    assert done.returncode == 0, done.stderr
    assert "is done: 80 records" in done.stdout
    assert_restored(source, read_topic(broker.bootstrap, f"back-{topic_name}"))
    stands = positions(broker.bootstrap, group)
    assert stands[f"back-{topic_name}", 0] == stands[topic_name, 0] == Position(7, "here\0")

    done = _run(["restore"], elsewhere, settings)
    assert done.returncode == 1
    assert f"target topic back-{topic_name} is not empty" in done.stderr


def _check_shown(lines: list[str], broker: Broker) -> None:
    """Check that progress is shown from the first moment on, and then as a bar with the remaining time."""
    before = [line for line in lines if "━" not in line and line != "starting Spark"]  # it may have started by then
    assert before == [
        f"connecting to the source cluster at {broker.bootstrap}",
        "1 topic, 2 partitions, up to 80 new records",
    ]
    bars = [line for line in lines if "━" in line]
    assert bars
    assert re.fullmatch(r"run ━+ 80 of 80 records, .*, 0s left", bars[-1])


def test_unknown_topic_is_a_usage_error(broker: Broker, bucket: Bucket, tmp_path: Path) -> None:
    arguments = ["backup", "--archive", bucket.url, "--bootstrap-server", broker.bootstrap, "-t", "no-such"]
    done = _run(arguments, tmp_path, bucket.env)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "kbackup: there is no topic no-such in the source cluster",
        "hint: check the name; regular expressions go between slashes",
    ]
