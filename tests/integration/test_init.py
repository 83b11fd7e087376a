"""`kbackup init` with a real broker and a real S3 server: each answer is tried at once, and the unit that it writes
takes a restore point with its own environment alone."""

from __future__ import annotations

import json
import os
import pty
import select
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from scripts.dev.registry import Apicurio
from tests.conftest import Bucket
from tests.integration import topics
from tests.support.local_http import Quiet, serving
from tests.support.schema_samples import register
from tests.support.secrets import make, watch
from tests.support.units import run_unit

ROOT = Path(__file__).parents[2]
_PATIENCE = 90  # s, for what a question waits for


def shell_environment() -> dict[str, str]:
    """Return the variables of a shell that knows nothing of kbackup and AWS."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith(("KBACKUP_", "AWS_"))}
    return {**clean, "PYTHONPATH": str(ROOT)}


class Dialog:
    """A process of `kbackup init` with a terminal of its own, which Ctrl-C and hidden answers need."""

    def __init__(self, folder: Path) -> None:
        self._screen, self._keyboard = pty.openpty()
        command = [sys.executable, "-m", "kbackup", "init"]
        self.process = subprocess.Popen(
            # the leader of a session gets the first terminal that it opens
            ["/bin/sh", "-c", 'exec <"$0" >"$0" 2>&1; exec "$@"', os.ttyname(self._keyboard), *command],
            cwd=folder,
            env={**shell_environment(), "TERM": "dumb"},
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
    broker: Broker, bucket: Bucket, topic_name: str, start: Callable[[], Dialog], tmp_path: Path
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
    dialog.answer("URL of the schema registry", "")
    dialog.answer("Send it to a webhook of Slack", "")
    dialog.answer("Run it by", "systemd")
    dialog.answer("Time of the day", "")
    dialog.answer("Write the value of MINIO_SECRET into", "")
    dialog.expect("ok       spark: run a task")
    assert dialog.end() == 0, dialog.text

    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    environment = written.pop("kbackup.env")
    assert sorted(written) == ["kbackup.service", "kbackup.timer", "kbackup.toml"]
    assert bucket.server.secret_key not in "".join(written.values()) + dialog.text
    assert f"MINIO_SECRET={bucket.server.secret_key}\n" in environment
    assert tomllib.loads(written["kbackup.toml"])["s3"]["secret_access_key"] == "${env:MINIO_SECRET}"
    archive = open_store(f"{bucket.url}/kafka", {"s3": bucket.options})
    assert list(archive.list()) == []

    night = run_unit(tmp_path / "kbackup.service")
    assert night.returncode == 0, night.stderr
    head = open_archive(archive).head
    assert head is not None
    assert head.number == 1


def test_ctrl_c_leaves_nothing_behind(broker: Broker, start: Callable[[], Dialog], tmp_path: Path) -> None:
    dialog = start()
    dialog.answer("Brokers", broker.bootstrap)
    dialog.answer("Security protocol", "")
    dialog.expect("Address")
    dialog.press(b"\x03")
    assert dialog.end() == 130, dialog.text
    assert "kbackup: interrupted" in dialog.text
    assert list(tmp_path.iterdir()) == []


class Hook(Quiet, BaseHTTPRequestHandler):
    """A webhook that takes everything."""

    taken: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append({"path": self.path, **json.loads(body)})
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def webhook() -> Iterator[str]:
    """The URL of a webhook, which is a secret by its path."""
    Hook.taken.clear()
    with serving(Hook) as url:
        yield f"{url}/{make('path of a webhook')}"


def init(folder: Path, environ: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `kbackup init --yes` with exactly these variables. Return its exit code and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "kbackup", "init", "--yes", "--json", *arguments],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    watch.look_at("kbackup init", done.stdout + done.stderr)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def first_night(folder: Path, bucket: Bucket) -> int:
    """Run the unit's command. Return the number of the newest restore point afterwards."""
    done = run_unit(folder / "kbackup.service")
    assert done.returncode == 0, done.stderr
    head = open_archive(open_store(f"{bucket.url}/kafka", {"s3": bucket.options})).head
    assert head is not None
    return head.number


def test_a_perfect_init_gives_a_restore_point_the_first_night(
    broker: Broker, bucket: Bucket, apicurio: Apicurio, webhook: str, topic_name: str, tmp_path: Path
) -> None:
    """All answers come from the shell: the store's endpoint, region and credentials, the webhook and a setting."""
    topics.make_plain(broker, topic_name)
    register(apicurio.url, f"{topic_name}-")
    shell = {
        **shell_environment(),
        **bucket.env,
        "WEBHOOK_URL": webhook,
        "KBACKUP_SCHEMA_REGISTRY_URL": apicurio.url,
        "KBACKUP_NOTIFY_ON": "failure,loss,success",
    }
    flags = ("--bootstrap-server", broker.bootstrap, "--archive", f"{bucket.url}/kafka", "--topic", topic_name)
    code, report = init(tmp_path, shell, *flags, "--notify", "json", "--schedule", "systemd", "--write-secrets")
    steps = {step["name"]: step["status"] for step in report["clean_steps"]}
    assert code == 0, report
    assert {steps["spark: run a task"], steps["schema registry"], steps["archive: lease"]} == {"ok"}

    config = tomllib.loads((tmp_path / "kbackup.toml").read_text())
    assert config["s3"] == {"endpoint_url": bucket.server.endpoint_url, "region": bucket.server.region}
    assert config["schema_registry"] == {"url": apicurio.url}
    assert config["notify"] == {"url": "${env:WEBHOOK_URL}", "on": ["failure", "loss", "success"]}
    assert stat.S_IMODE((tmp_path / "kbackup.env").stat().st_mode) == 0o600
    used = {variable["name"]: variable["state"] for variable in report["variables"]}
    secrets = {"AWS_ACCESS_KEY_ID": "written", "AWS_SECRET_ACCESS_KEY": "written", "WEBHOOK_URL": "written"}
    assert secrets.items() <= used.items()

    assert first_night(tmp_path, bucket) == 1
    assert [(taken["command"], taken["event"]) for taken in Hook.taken] == [
        ("init", "success"),
        ("check", "success"),
        ("backup", "success"),
    ]
    assert {taken["path"] for taken in Hook.taken} == {urlsplit(webhook).path}


def test_secrets_that_are_not_written_are_named_and_filled_in(
    broker: Broker, bucket: Bucket, topic_name: str, tmp_path: Path
) -> None:
    topics.make_plain(broker, topic_name)
    shell = shell_environment() | bucket.env
    flags = ("--bootstrap-server", broker.bootstrap, "--archive", f"{bucket.url}/kafka", "--topic", topic_name)
    code, report = init(tmp_path, shell, *flags, "--schedule", "systemd")
    file = tmp_path / "kbackup.env"
    [step] = report["clean_steps"]
    assert code == 2
    assert (step["status"], step["detail"]) == ("failed", f"{file} has no value of AWS_SECRET_ACCESS_KEY")
    assert report["next"][0] == f"write the value of AWS_SECRET_ACCESS_KEY into {file}"
    assert bucket.server.secret_key not in file.read_text()

    filled = file.read_text().replace("AWS_SECRET_ACCESS_KEY=\n", f"AWS_SECRET_ACCESS_KEY={bucket.server.secret_key}\n")
    file.write_text(filled)
    assert first_night(tmp_path, bucket) == 1


def test_what_only_the_shell_knows_fails_the_check_of_the_unit(
    broker: Broker, bucket: Bucket, topic_name: str, tmp_path: Path
) -> None:
    """The shell's home has AWS's files, which the home of the unit's user lacks."""
    topics.make_plain(broker, topic_name)
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    credentials = f"aws_access_key_id={bucket.server.access_key}\naws_secret_access_key={bucket.server.secret_key}\n"
    (home / ".aws" / "credentials").write_text(f"[default]\n{credentials}")
    names = ("AWS_ENDPOINT_URL_S3", "AWS_REGION")
    shell = shell_environment() | {name: bucket.env[name] for name in names} | {"HOME": str(home)}
    flags = ("--bootstrap-server", broker.bootstrap, "--archive", f"{bucket.url}/kafka", "--topic", topic_name)
    try:
        code, report = init(tmp_path, shell, *flags, "--schedule", "systemd")
    finally:
        (home / ".aws" / "credentials").unlink()
    steps = {step["name"]: step["status"] for step in report["clean_steps"]}
    assert code == 14
    assert steps["archive: open"] == "failed"
    assert steps["source: topics"] == "ok"


def test_the_secret_of_a_pod_is_enough_for_its_check(
    broker: Broker, bucket: Bucket, topic_name: str, tmp_path: Path
) -> None:
    topics.make_plain(broker, topic_name)
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    # The shell's proxy and its files are of no use in a pod.
    shell = shell_environment() | bucket.env | {"NO_PROXY": "localhost"}
    flags = ("--bootstrap-server", broker.bootstrap, "--archive", f"{bucket.url}/kafka", "--topic", topic_name)
    more = ("--set", f"s3.ca_bundle={bundle}", "--write-secrets", "--image", "registry/kbackup")
    code, report = init(tmp_path, shell, *flags, *more, "--schedule", "kubernetes")
    assert code == 0, report
    steps = {step["name"]: step for step in report["clean_steps"]}
    assert (steps["archive: lease"]["status"], steps["source: topics"]["status"]) == ("ok", "ok")
    assert steps["files"]["detail"] == f"the configuration names files of this machine: {bundle}"

    # kubectl takes the rest of each line as it is.
    lines = (tmp_path / "kbackup-secret.env").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        f"AWS_ACCESS_KEY_ID={bucket.server.access_key}",
        f"AWS_SECRET_ACCESS_KEY={bucket.server.secret_key}",
    ]
