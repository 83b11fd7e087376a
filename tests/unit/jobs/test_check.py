"""The check's steps on stores that misbehave; what needs no cluster."""

from __future__ import annotations

import builtins
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive.lease import HeldLease
from kbackup.config.models import Config
from kbackup.errors import DeniedError, StoreError, UnreachableError, UsageError
from kbackup.jobs.check import CheckStep, Steps, Visit, check, check_registry, speaks_tls
from kbackup.metadata.entities import not_carried_entry, source_name
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import ProgressSender
from kbackup.store import Store, open_store
from kbackup.store.base import Buffer, Failed, ObjectInfo
from kbackup.store.file import FileStore
from kbackup.systems import MetadataSource
from scripts.dev.secured import Authority
from tests.support.archives import make_archive
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.metadata_entities import by_log, by_zookeeper

Said = pytest.CaptureFixture[str]


def steps_of(store: Callable[[], Store]) -> tuple[dict[str, CheckStep], int]:
    shown: list[CheckStep] = []
    report = check(Config(), store, shown.append)
    assert report.steps == tuple(shown)
    return {step.name: step for step in shown}, report.exit_code


def answering(answer: Callable[[socket.socket], None]) -> int:
    """Start a server that gives one connection its answer, and return its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection, suppress(OSError):
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_a_worker_tells_what_it_can_not_reach(tmp_path: Path) -> None:
    """And lists an archive that is not made yet."""

    class Closed(FileStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            raise UnreachableError("the way to the archive is closed")

    (reached,) = Visit((FileStore(tmp_path / "later"),), {}, 0.0)(0, ProgressSender(None, 0))
    (closed,) = Visit((Closed(tmp_path),), {}, 0.0)(0, ProgressSender(None, 0))
    assert (reached.failure, closed.failure) == ("", "the way to the archive is closed")


def test_a_hello_tells_whether_brokers_speak_tls(tmp_path: Path) -> None:
    issued = Authority().issue("server")
    (tmp_path / "server.pem").write_text(issued.certificate + issued.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    refusing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate: the handshake ends with an alert
    with socket.create_server(("127.0.0.1", 0)) as freed:
        closed = freed.getsockname()[1]
    for answer, expected in (
        (lambda connection: context.wrap_socket(connection, server_side=True).close(), True),
        (lambda connection: refusing.wrap_socket(connection, server_side=True).close(), True),
        (lambda connection: connection.recv(1 << 10), False),
        (lambda connection: connection.sendall(b"HTTP/1.1 400\r\n\r\n"), False),
        (lambda connection: time.sleep(1), None),
    ):
        servers = f"nonsense, 127.0.0.1:{closed}, 127.0.0.1:{answering(answer)}"
        assert speaks_tls(servers, 0.5) is expected
    assert speaks_tls(f"127.0.0.1:{closed}") is None


def test_an_archive_that_works(tmp_path: Path) -> None:
    steps, code = steps_of(lambda: open_store(str(tmp_path / "new")))
    assert all(step.status == "ok" for name, step in steps.items() if name.startswith("archive: "))
    assert "the first backup makes it" in steps["archive: open"].detail
    assert list(open_store(str(tmp_path / "new")).list()) == []
    assert steps["source: reach"].status == "failed"
    assert steps["source: reach"].hint.startswith("set bootstrap.servers in [source]")
    assert steps["source: read"].status == "skipped"
    assert code == 2

    make_archive(open_store(str(tmp_path / "made")))
    steps, _ = steps_of(lambda: open_store(str(tmp_path / "made")))
    assert "restore point 2 of 2026-01-02" in steps["archive: open"].detail


def test_an_address_that_is_none() -> None:
    steps, code = steps_of(lambda: open_store("ftp://somewhere"))
    assert steps["archive: open"].status == "failed"
    assert {s.status for n, s in steps.items() if n.startswith("archive: ")} == {"failed", "skipped"}
    assert code == UsageError.exit_code


def test_a_check_tells_of_each_source_of_metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    denied = not_carried_entry("scram_users", "denied", "znode /config/users may not be read")
    readings = [by_zookeeper(not_carried=(denied,)), by_log(outdated="not copied yet")]
    asked = [MetadataSource(r.source, f"the {source_name(r.source)}", lambda r=r: r) for r in readings]  # type: ignore[misc]  # bound now
    monkeypatch.setattr("kbackup.jobs.check.metadata_sources", lambda sources: asked)
    steps, _ = steps_of(lambda: open_store(str(tmp_path / "new")))
    assert steps["source: zookeeper"].status == "warning"
    assert "SCRAM users: znode /config/users may not be read" in steps["source: zookeeper"].detail
    log = steps["source: metadata log"]
    assert (log.status, log.detail) == ("ok", "the metadata log, cluster c; not used: not copied yet")


class Overwrites(FileStore):
    def put_new(self, key: str, data: Buffer) -> str:
        return self.put(key, data)


class Forgets(FileStore):
    """Does not list what was written."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(())


class Keeps(FileStore):
    """Nothing can be deleted."""

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        return [Failed(key, DeniedError(f"{key}: denied", "check the rights to delete")) for key in keys]


class Late(FileStore):
    def stat(self, key: str) -> ObjectInfo:
        info = super().stat(key)
        return info._replace(modified=info.modified - 100)


class Garbles(FileStore):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        return b"?" * length


@pytest.mark.parametrize(
    ("kind", "name", "status", "detail"),
    [
        (Overwrites, "archive: conditional writes", "failed", "ignores the condition of a create"),
        (Forgets, "archive: upload, read, list", "failed", "does not list"),
        (Garbles, "archive: upload, read, list", "failed", "returned other bytes"),
        (Keeps, "archive: delete", "failed", "denied"),
        (Late, "archive: clock", "warning", "100 s behind this machine's"),
    ],
)
def test_a_check_names_what_a_store_does_wrong(
    tmp_path: Path, kind: type[FileStore], name: str, status: str, detail: str
) -> None:
    store = kind(tmp_path / "archive")
    steps, _ = steps_of(lambda: store)
    assert steps[name].status == status
    assert detail in steps[name].detail
    assert steps[name].hint
    assert steps["archive: lease"].status == "ok", "the check goes on"
    if kind is not Keeps:
        assert list(FileStore(tmp_path / "archive").list("")) == []


def test_the_first_failure_gives_the_code() -> None:
    steps = Steps(lambda step: None)
    with steps.trying("one") as step:
        step.warn("only a warning", "")
    with steps.trying("two"):
        raise DeniedError("no", "ask")
    with steps.trying("three"):
        raise StoreError("no")
    assert (steps.exit_code, [s.status for s in steps.done]) == (14, ["warning", "failed", "failed"])
    with pytest.raises(ZeroDivisionError), steps.trying("four"):
        _ = 1 / 0


def test_the_command_names_who_holds_the_lease(tmp_path: Path, capsys: Said) -> None:
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    with HeldLease(store, "kbackup backup", 60):
        code = cli.main(["check", "-a", store.url])
    out, err = capsys.readouterr()
    assert code == 11
    assert f"FAILED   archive: lease: archive {store.url} is locked by kbackup backup on" in out
    assert "hint: wait until it ends: then a backup can begin" in out
    assert "ok       archive: delete: nothing is left" in out
    assert err == ""


def test_the_command_without_anything(capsys: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 2
    failed = {s["name"]: s["hint"] for s in document["steps"] if s["status"] == "failed"}
    assert list(failed) == ["archive: open", "source: reach"]
    assert failed["archive: open"].startswith("give --archive")


@pytest.mark.exhaustive
def test_a_source_that_is_not_there(tmp_path: Path, capsys: Said) -> None:
    away = ["--set", "source.socket.connection.setup.timeout.ms=1000"]
    code = cli.main(["check", "-a", str(tmp_path / "new"), "--bootstrap-server", "127.0.0.1:9", *away])
    out, err = capsys.readouterr()
    assert code == 14
    assert "FAILED   source: reach: source cluster at 127.0.0.1:9 did not answer" in out
    assert "hint: check that it is running and can be reached from here" in out
    assert err == ""


def test_a_schema_registry_is_read(tmp_path: Path) -> None:
    with ConfluentRegistry() as registry:
        for subject in ("a", "b"):
            registry.register(subject, {"schema": '"string"'})
        registry.answer("DELETE", "/subjects/b", {})
        steps = registry_steps(registry.url)
    assert steps["schema registry"].detail.endswith(": 1 subject, 1 deleted; compatibility BACKWARD")
    assert (steps["target schema registry"].status, steps["target schema registry"].exit_code) == ("failed", 14)


def registry_steps(url: str) -> dict[str, CheckStep]:
    steps = Steps(lambda step: None)
    check_registry(steps, RegistryOptions(url=url), "schema_registry")
    check_registry(steps, RegistryOptions(url="http://127.0.0.1:1"), "target_schema_registry")
    check_registry(steps, RegistryOptions(), "target_schema_registry")
    return {step.name: step for step in steps.done}
