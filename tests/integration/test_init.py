"""`kbackup init` on a terminal, with a real broker and a real S3 server: each answer is tried at once."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.integration import topics
from tests.support.secrets import watch

ROOT = Path(__file__).parents[2]
_PATIENCE = 90  # s, for what a question waits for


class Dialog:
    """A process of `kbackup init` with a terminal of its own, which Ctrl-C and hidden answers need."""

    def __init__(self, folder: Path) -> None:
        self._screen, self._keyboard = pty.openpty()
        clean = {name: v for name, v in os.environ.items() if not name.startswith(("KBACKUP_", "AWS_"))}
        command = [sys.executable, "-m", "kbackup", "init"]
        self.process = subprocess.Popen(
            # the leader of a session gets the first terminal that it opens
            ["/bin/sh", "-c", 'exec <"$0" >"$0" 2>&1; exec "$@"', os.ttyname(self._keyboard), *command],
            cwd=folder,
            env={**clean, "PYTHONPATH": str(ROOT), "TERM": "dumb"},
            start_new_session=True,
        )
        self.text = ""
        self._seen = 0

    def expect(self, text: str) -> None:
        """Read until the terminal shows a text after the one before."""
        end = time.monotonic() + _PATIENCE
        while (at := self.text.find(text, self._seen)) < 0:
            assert select.select([self._screen], [], [], max(end - time.monotonic(), 0))[0], self.text
            self._read()
        self._seen = at + len(text)

    def answer(self, question: str, answer: str) -> None:
        self.expect(question)
        os.write(self._screen, f"{answer}\n".encode())

    def press(self, key: bytes) -> None:
        """Press a key once the process waits for it: an earlier signal would be noticed with the next key."""
        end, looks = time.monotonic() + _PATIENCE, 0
        while looks < 5:
            assert time.monotonic() < end, self.text
            time.sleep(0.1)
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            looks = looks + 1 if state == "S" else 0
        os.write(self._screen, key)

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        os.close(self._keyboard)  # the process has one of its own by now
        self._keyboard = -1
        try:
            while True:
                self._read()
        except OSError:  # EIO: the process has closed its end
            return self.process.wait(_PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for handle in {self._screen, self._keyboard} - {-1}:
            os.close(handle)

    def _read(self) -> None:
        shown = os.read(self._screen, 1 << 16).decode("utf-8", "replace")
        watch.look_at("the dialog of kbackup init", shown)
        self.text += shown.replace("\r", "")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Dialog]]:
    dialogs: list[Dialog] = []

    def begin() -> Dialog:
        dialogs.append(Dialog(tmp_path))
        return dialogs[-1]

    yield begin
    for dialog in dialogs:
        dialog.close()


def test_answers_are_tried_corrected_and_written(
    broker: Broker,
    bucket: Bucket,
    topic_name: str,
    start: Callable[[], Dialog],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics.make_plain(broker, topic_name)
    dialog = start()
    dialog.answer("Brokers", broker.bootstrap)
    dialog.answer("Security protocol", "plaintext")
    dialog.expect("ok       source: list topics: ")
    dialog.answer("Address", f"{bucket.url}-none/kafka")
    dialog.answer("URL of the S3 server", bucket.server.endpoint_url)
    dialog.answer("Region", bucket.server.region)
    dialog.answer("Access key", bucket.server.access_key)
    dialog.answer("Where is secret_access_key", "env:MINIO_SECRET")
    dialog.answer("MINIO_SECRET is not set here", bucket.server.secret_key)
    dialog.expect("FAILED   archive: open: ")
    dialog.answer("Correct the answers or keep them?", "")
    dialog.answer("Address", f"{bucket.url}/kafka")
    for question in ("URL of the S3 server", "Region", "Access key", "Where is secret_access_key"):
        dialog.answer(question, "")
    dialog.expect("ok       archive: delete: nothing is left")
    dialog.answer("Topics (", topic_name)
    for question in ("Topics to exclude", "Consumer groups (", "Consumer groups to exclude"):
        dialog.answer(question, "")
    dialog.expect("ok       source: topics: 1 of ")
    dialog.answer("Run it by", "systemd")
    dialog.answer("Time of the day", "")
    assert dialog.end() == 0, dialog.text

    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(written) == ["kbackup.service", "kbackup.timer", "kbackup.toml"]
    assert bucket.server.secret_key not in "".join(written.values()) + dialog.text
    assert tomllib.loads(written["kbackup.toml"])["s3"]["secret_access_key"] == "${env:MINIO_SECRET}"
    assert "write MINIO_SECRET=… into" in dialog.text
    assert list(open_store(f"{bucket.url}/kafka", {"s3": bucket.options}).list()) == []

    monkeypatch.setenv("MINIO_SECRET", bucket.server.secret_key)
    code = cli.main(["check", "--config", str(tmp_path / "kbackup.toml")])
    assert (code, "FAILED" in capsys.readouterr().out) == (0, False)


def test_ctrl_c_leaves_nothing_behind(broker: Broker, start: Callable[[], Dialog], tmp_path: Path) -> None:
    dialog = start()
    dialog.answer("Brokers", broker.bootstrap)
    dialog.answer("Security protocol", "")
    dialog.expect("Address")
    dialog.press(b"\x03")
    assert dialog.end() == 130, dialog.text
    assert "kbackup: interrupted" in dialog.text
    assert list(tmp_path.iterdir()) == []
