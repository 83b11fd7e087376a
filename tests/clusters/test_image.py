"""The image as pods run it: with a read-only root and without root's rights, as users that it knows and that it does
not, in old locales, and ended in the middle of its work. `make image` builds it before."""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException

from scripts.dev.image import USER, Container
from scripts.dev.kafka import Broker
from scripts.dev.process import HANG, free_ports
from tests.clusters.conftest import GROUP, RECORDS
from tests.integration.topics import wait_until
from tests.support.secrets import make
from tests.support.truth import assert_restored, log_ends, positions, read_topic

STRANGER = 1_000_650_000
"""A user that the image has no account for, as OpenShift gives one to each project."""

LOCALES = "/locales"


class Case(NamedTuple):
    user: int
    group: int
    locale: str


CASES = {
    "the user of the image": Case(USER, USER, "C.UTF-8"),
    "a user without an account, POSIX": Case(STRANGER, 0, "POSIX"),
    "a user without an account, ISO-8859-1": Case(STRANGER, 0, "de_DE.ISO-8859-1"),
}

LIMITED = ("--limit-rate", "1MiB")
"""The large topic takes half a minute by this."""

CUT = ("--set", "backup.segment_bytes=1MiB")


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the locale that the image does not have."""
    folder = tmp_path_factory.mktemp("locales")
    name = "de_DE.ISO-8859-1"
    argv = ["localedef", "--no-archive", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / name)]
    subprocess.run(argv, check=True, timeout=HANG)
    folder.chmod(0o755)
    return folder


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return a folder that every user may write to."""
    folder = tmp_path / "archives"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def container(broker: Broker, archive: Path, locales: Path | None = None, case: Case | None = None) -> Container:
    """Return the image with an archive `/archives/a` and one broker as source and target."""
    user, group, locale = case or Case(STRANGER, 0, "C.UTF-8")
    env = {
        "KBACKUP_ARCHIVE": "/archives/a",
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_SPARK_MASTER": "local[2]",
        "LC_ALL": locale,
        "LOCPATH": LOCALES,
    }
    mounts = {archive: "/archives"}
    if locales is not None:
        mounts[locales] = f"{LOCALES}:ro"
    return Container(user, group, env, mounts)


def run(argv: list[str], code: int = 0) -> str:
    """Return all that a container prints that ends with `code`. Some print in a charset of their own."""
    done = subprocess.run(argv, capture_output=True, timeout=HANG, check=False)
    printed = (done.stdout + done.stderr).decode("latin-1")
    assert done.returncode == code, printed
    assert "Traceback" not in printed
    return printed


@contextmanager
def running(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a container, which is killed where the block leaves it running."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        # The container may outlive podman, and keeps the other end of the pipe open.
        process.communicate(timeout=HANG)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGTERM, which podman passes on, and return exit code and output."""
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=HANG)
    return process.returncode, printed


def test_backup_restore_and_verify(broker: Broker, topic: str, archive: Path, locales: Path, case: Case) -> None:
    image = container(broker, archive, locales, case)
    restored = f"back-{secrets.token_hex(4)}"

    assert f"{RECORDS:,} new records" in run(image.command("backup", "--topic", topic))
    # The name of the group is printed, and not every charset has its letters.
    assert "buchhaltung-" in run(image.command("groups", "show"))

    restore = ["restore", "--map", f"{topic}={restored}", "--restore-id", "in-a-container"]
    assert f"{RECORDS:,} records" in run(image.command(*restore))
    assert_restored(read_topic(broker.bootstrap, topic), read_topic(broker.bootstrap, restored))
    assert positions(broker.bootstrap, GROUP)[restored, 0].offset == 100

    verified = run(image.command("verify"))
    assert f"0 findings; 1 restore point, 4 segments, {RECORDS:,} records read back" in verified
    assert "cannot change locale" not in verified, "the locale is there"


def test_a_backup_that_sigterm_ends_is_gone_on_with(broker: Broker, large_topic: str, archive: Path) -> None:
    image = container(broker, archive)

    with running(image.command("backup", "--topic", large_topic, *CUT, *LIMITED)) as process:
        wait_until(lambda: any(archive.rglob("segment_*")) or process.poll() is not None)
        code, printed = end(process)
    assert code == 130, printed
    assert "kbackup: interrupted" in printed

    backed_up = run(image.command("backup", "--topic", large_topic, *CUT))
    assert "restore point 1 of" in backed_up, "an interrupted backup commits nothing"
    archived = sum(map(len, read_topic(broker.bootstrap, large_topic).values()))
    assert f"{archived:,} records read back" in run(image.command("verify"))


def test_a_restore_that_sigterm_ends_is_gone_on_with(broker: Broker, large_topic: str, archive: Path) -> None:
    image = container(broker, archive)
    run(image.command("backup", "--topic", large_topic, *CUT))
    restored = f"back-{secrets.token_hex(4)}"
    restore = ["restore", "--map", f"{large_topic}={restored}", "--restore-id", "ended"]

    def has_records() -> bool:
        try:
            return any(log_ends(broker.bootstrap, restored).values())
        except KafkaException:  # the topic is being made
            return False

    with running(image.command(*restore, *LIMITED)) as process:
        wait_until(lambda: has_records() or process.poll() is not None)
        code, printed = end(process)
    assert code == 130, printed
    assert "--restore-id ended --limit-rate" in printed

    run(image.command(*restore))
    assert_restored(read_topic(broker.bootstrap, large_topic), read_topic(broker.bootstrap, restored))


def test_the_page_is_served_and_ends_in_order(broker: Broker, topic: str, archive: Path) -> None:
    run(container(broker, archive).command("backup", "--topic", topic))
    (port,) = free_ports(1)
    token = make("the token of the page in a container")
    page = Container(STRANGER, 0, {"KBACKUP_UI_TOKEN": token, "KBACKUP_ARCHIVE": "/archives/a"}, {archive: "/archives"})
    address = f"http://127.0.0.1:{port}/topics"

    def status(headers: dict[str, str]) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:  # it does not listen yet
            return 0

    with running(page.command("ui", "--listen", f"0.0.0.0:{port}")) as process:
        wait_until(lambda: status({}) != 0 or process.poll() is not None)
        assert status({}) == 401
        assert status({"Authorization": f"Bearer {token}"}) == 200
        code, printed = end(process)
    assert (code, "Traceback" in printed) == (0, False), printed


def test_delta_tables_are_written_without_a_network(broker: Broker, topic: str, archive: Path) -> None:
    """By a user without an account: nothing is fetched, and no home is needed."""
    run(container(broker, archive).command("backup", "--topic", topic))
    env = {"KBACKUP_ARCHIVE": "/archives/a", "KBACKUP_SPARK_MASTER": "local[2]"}
    alone = Container(STRANGER, 0, env, {archive: "/archives"}, network="none")
    assert f"{RECORDS:,} new records" in run(alone.command("export", "--delta", "/archives/lake"))


@pytest.mark.parametrize("user", [USER, STRANGER])
def test_kernels_are_not_compiled_again(user: int) -> None:
    code = "from kbackup.native.compiled import fill; print(sum(fill.fill.stats.cache_hits.values()))"
    assert run(Container(user, 0).command("-c", code, entrypoint="python")) == "1\n"


def test_an_executor_of_a_user_without_an_account_asks_for_its_driver() -> None:
    env = {
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "spark-7",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "kbackup-exec-1",
        "SPARK_USER": "kbackup",
    }
    done = subprocess.run(
        Container(STRANGER, 0, env).command("executor"), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 1
    assert "Failed to connect to /127.0.0.1:1" in done.stderr
    assert not re.search("LoginException|effective user", done.stderr)
