"""Sessions with a real ZooKeeper, without Kafka: TLS, servers that don't answer, conditional deletions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kbackup.errors import UnreachableError, UsageError
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.zookeeper.read import read_zookeeper
from kbackup.migrate.zookeeper.session import open_session
from scripts.dev.process import free_ports
from scripts.dev.secured import Authority
from scripts.dev.zookeeper import ZooKeeper

SECONDS = 4.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def trusted(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trust") / "trusted.pem"
    path.write_text(authority.certificate)
    return str(path)


@pytest.fixture(scope="module")
def zookeeper(authority: Authority) -> Iterator[ZooKeeper]:
    with ZooKeeper(authority=authority) as server:
        client = KazooClient(server.connect)
        client.start()
        client.create("/a/cluster/id", b'{"version":"1","id":"kA"}', makepath=True)
        client.create("/a/migration", b"{}")
        client.stop()
        client.close()
        yield server


def test_zookeeper_is_read_by_tls(zookeeper: ZooKeeper, trusted: str) -> None:
    options = ZooKeeperOptions(connect=f"{zookeeper.tls_connect}/a", tls=True, certificates=trusted)
    assert read_zookeeper(options).cluster_id == "kA"


# kazoo leaves the socket of a failed handshake to the garbage collector
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_a_certificate_of_somebody_else(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Authority().certificate)
    options = ZooKeeperOptions(connect=zookeeper.tls_connect, tls=True, certificates=str(other), connection_timeout=2.0)
    with pytest.raises(UnreachableError, match=r"within 2 s: .*certificate verify failed"):
        read_zookeeper(options)
    gc.collect()


@pytest.mark.parametrize("name", ["certificates", "own_certificate"])
def test_a_file_that_is_no_certificate_is_named(name: str, tmp_path: Path) -> None:
    broken = tmp_path / "x.pem"
    for content in (None, "nothing"):
        if content:
            broken.write_text(content)
        files: dict[str, Any] = {name: str(broken)}
        options = ZooKeeperOptions(connect="127.0.0.1:1", tls=True, **files)
        with pytest.raises(UsageError, match=r"zookeeper\.ssl\.\w+\.location: can't use .*x\.pem"):
            read_zookeeper(options)


def test_closed_port_is_reported_as_unreachable() -> None:
    (port,) = free_ports(1)
    options = ZooKeeperOptions(connect=f"127.0.0.1:{port}", connection_timeout=0.5)
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.5 s: .*Connection refused; check"):
        read_zookeeper(options)


def test_a_znode_is_deleted_only_at_its_version(zookeeper: ZooKeeper) -> None:
    with open_session(ZooKeeperOptions(connect=f"{zookeeper.connect}/a", session_timeout=SECONDS)) as session:
        znode = session.get(["/migration"])["/migration"]
        assert (znode.data, znode.version, znode.ephemeral) == (b"{}", 0, False)
        assert not session.delete("/migration", 7)
        assert "/migration" in session.get(["/migration"])
        assert session.delete("/migration", znode.version)
        assert not session.delete("/migration", znode.version)
        assert session.get(["/migration", "/nothing"]) == {}
        assert session.children("/nothing") == []


def test_a_server_that_stops_ends_the_session() -> None:
    with (
        ZooKeeper() as server,
        open_session(ZooKeeperOptions(connect=server.connect, session_timeout=SECONDS)) as session,
    ):
        server.kill()
        with pytest.raises(UnreachableError, match="stopped answering"):
            session.get(["/controller"])
