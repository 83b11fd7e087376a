"""Archives for commands, and a ZooKeeper in memory for the commands of `migrate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.metadata.entities import Znode
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate import readings as states_read
from kbackup.store import open_store
from kbackup.store.file import FileStore
from tests.support.archives import commit_point, make_archive
from tests.support.healthy_cluster import COPIED, OF_KRAFT
from tests.support.migration_states import FakeZooKeeper
from tests.support.printed import Kbackup, Printed


@pytest.fixture
def kbackup(capsys: pytest.CaptureFixture[str]) -> Kbackup:
    def run(*args: str, code: int = 0) -> Printed:
        capsys.readouterr()
        ended = main(args)
        printed = Printed(*capsys.readouterr())
        assert ended == code, (args, printed)
        return printed

    return run


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """An archive of two restore points, to change."""
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    return store.url


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive of two restore points, to read."""
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return str(root)


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> FakeZooKeeper:
    """A dual write, in place of the ZooKeeper that is named."""
    znodes: dict[str, object] = {
        "/controller": OF_KRAFT,
        "/migration": COPIED,
        "/controller_epoch": b"7",
        "/brokers/ids/1": {},
        "/cluster/id": {"id": "c"},
    }
    fake = FakeZooKeeper(znodes)

    @contextmanager
    def access(options: ZooKeeperOptions) -> Iterator[FakeZooKeeper]:
        assert options.connect == "zk:2181/kafka"
        yield fake

    monkeypatch.setattr(states_read, "open_session", access)
    monkeypatch.setattr("kbackup.migrate.zookeeper.session.open_session", access)
    return fake


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Holds the znodes as they are."""
    store = FileStore(tmp_path / "archive")
    made = make_archive(store)
    znodes = [Znode(path=p, content=json.dumps(c)) for p, c in (("/controller", OF_KRAFT), ("/migration", COPIED))]
    assert made.head is not None
    commit_point(made, 3, znodes=znodes)
    return store.url
