"""The lag of ZooKeeper behind the controllers' metadata logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbackup.errors import CorruptError, MismatchError
from kbackup.jobs.migrate import lag
from kbackup.jobs.migrate.lag import is_written_by_kraft, lag_warnings, read_lag
from kbackup.jobs.migrate.states import ControllerZnode, MigrationZnode, NotRead, ZnodesWitness
from kbackup.jobs.migrate.znodes import Lag
from kbackup.kafka.metadata_log.codec import Record, record
from kbackup.metadata.sources import Sources
from kbackup.zookeeper.session import Answers
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.metadata_records import write_segment
from tests.support.migrate_commands import OF_KRAFT

A = "AAAAAAAAAAAAAAAAAAAAAQ"
TOPIC = [
    record("TopicRecord", {"name": "orders", "topicId": A}),
    record("PartitionRecord", {"topicId": A, "partitionId": 0, "replicas": [1], "isr": [1], "leader": 1}),
]
QUOTA = record(
    "ClientQuotaRecord", {"entity": [{"entityType": "user", "entityName": "u"}], "key": "k", "value": 1.0}
)
NO_OP = record("NoOpRecord")


def _leader(*voters: int) -> Record:
    listed = [{"voterId": voter} for voter in voters]
    return Record("LeaderChangeMessage", 2, 0, {"leaderId": voters[0], "voters": listed}, control=True)


def _state(number: int) -> Record:
    return record("ZkMigrationStateRecord", {"zkMigrationState": number})


def _log(
    folder: Path, *later: list[Record], node: int = 1, voters: tuple[int, ...] = (1,), epoch: int = 1
) -> str:
    """Write the log of a controller: a leader, the state and a topic at offsets 0 to 3, and what comes later."""
    log = folder / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (folder / "meta.properties").write_text(f"# written by Kafka\nnode.id={node}\ncluster.id=c\n")
    write_segment(log, 0, [_leader(*voters)], [_state(1)], TOPIC, *later, epoch=epoch)
    return str(folder)


def _zookeeper(offset: int, **changed: object) -> FakeZooKeeper:
    return FakeZooKeeper(
        {
            "/cluster/id": {"version": "1", "id": "c"},
            "/controller": OF_KRAFT,
            "/migration": {"version": 0, "kraft_metadata_offset": offset},
            **dict.fromkeys(("/brokers/ids", "/brokers/topics", "/config/topics"), b""),
            "/brokers/topics/orders": {"version": 3, "topic_id": A, "partitions": {"0": [1]}},
            "/config/topics/orders": {"version": 1, "config": {}},
            "/brokers/ids/1": {},
        }
        | changed
    )


def _witness(offset: int | None) -> ZnodesWitness:
    migration = None if offset is None else MigrationZnode(offset)
    return ZnodesWitness(ControllerZnode(3000, 5), migration, frozenset())


def _read(offset: int, *folders: str) -> Lag | NotRead:
    return read_lag(_zookeeper(offset), folders, _witness(offset))


def test_every_record_is_in_zookeeper(tmp_path: Path) -> None:
    folder = _log(tmp_path, [NO_OP, NO_OP])
    assert _read(5, folder) == Lag(6, {}, ())
    assert _read(3, folder) == Lag(6, {}, ())  # what follows is nothing for ZooKeeper


def test_records_and_entities_that_zookeeper_lacks(tmp_path: Path) -> None:
    folder = _log(tmp_path, [QUOTA, NO_OP, QUOTA, Record("", 99, 0, b"?")])
    difference = "client quotas: user 'u': in the metadata log, not in ZooKeeper"
    assert _read(3, folder) == Lag(8, {"ClientQuotaRecord": 2, "metadata record 99": 1}, (difference,))
    assert _read(7, folder) == Lag(8, {}, (difference,))
    assert read_lag(_zookeeper(7), [folder], _witness(None)) == Lag(8, {}, (difference,))


def test_a_log_that_is_older_than_zookeeper(tmp_path: Path) -> None:
    answer = _read(6, _log(tmp_path, [NO_OP, NO_OP]))
    assert isinstance(answer, NotRead)
    assert answer.why == "the metadata log is older than ZooKeeper: it ends at offset 6, /migration is at 6"


def test_the_newest_log_of_a_majority_counts(tmp_path: Path) -> None:
    voters = (1, 2, 3)
    first = _log(tmp_path / "1", [NO_OP], node=1, voters=voters)
    second = _log(tmp_path / "2", [NO_OP], [QUOTA], node=2, voters=voters)
    foreign = _log(tmp_path / "9", node=9, voters=voters)
    for folders in ((first,), (first, first), (first, foreign)):
        answer = _read(4, *folders)
        assert isinstance(answer, NotRead)
        assert answer.why == "the logs of a minority are read: controllers 1 of 1, 2, 3"
        assert answer.hint.startswith("name the folders of 1 more")
    answer = _read(4, first, second)
    assert isinstance(answer, Lag)
    assert answer.records == {"ClientQuotaRecord": 1}
    third = _log(tmp_path / "3", [NO_OP], node=3, voters=voters, epoch=2)
    assert _read(4, second, third) == Lag(5, {}, ())  # a later leader's log has all that was acknowledged


def test_logs_that_tell_nothing(tmp_path: Path) -> None:
    for answer, why in (
        (_read(3), "no metadata log is named"),
        (_read(3, str(tmp_path / "missing")), "no metadata log of a controller"),
    ):
        assert isinstance(answer, NotRead)
        assert why in answer.why
    folder = _log(tmp_path, [QUOTA])
    path = next((tmp_path / "__cluster_metadata-0").iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptError, match="the file ends within a batch"):
        _read(3, folder)


def test_zookeeper_that_is_not_wholly_read(tmp_path: Path) -> None:
    folder = _log(tmp_path)

    class Denying(FakeZooKeeper):
        def read(self, paths: object, *, children: bool = False) -> Answers:
            answers = super().read(paths, children=children)  # type: ignore[arg-type]  # as given
            denied = {path for path in answers.znodes if path.startswith("/config/topics/")}
            return Answers(
                {p: z for p, z in answers.znodes.items() if p not in denied}, answers.children, denied
            )

    answer = read_lag(Denying(_zookeeper(3).znodes), [folder], _witness(3))
    assert isinstance(answer, NotRead)
    assert "/config/topics/orders may not be read" in answer.why
    with pytest.raises(MismatchError):
        read_lag(_zookeeper(3, **{"/cluster/id": {"id": "d"}}), [folder], _witness(3))


def test_before_the_copy_zookeeper_has_more_than_the_log(tmp_path: Path) -> None:
    assert _read(-1, _log(tmp_path, [_state(2)])) == Lag(5, {}, ())


def test_writer_of_zookeeper() -> None:
    broker, kraft = ControllerZnode(1, -1), ControllerZnode(3000, 5)
    for controller, offset, expected in (
        (kraft, 9, True),
        (kraft, -1, True),
        (kraft, None, True),
        (None, 9, True),
        (broker, 9, False),
        (broker, -1, False),
        (None, -1, False),
        (None, None, False),
    ):
        migration = None if offset is None else MigrationZnode(offset)
        written = is_written_by_kraft(ZnodesWitness(controller, migration, frozenset()))
        assert written is expected, (controller, offset)


def test_warnings_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = _zookeeper(4)

    @contextmanager
    def access(_: object) -> Iterator[FakeZooKeeper]:
        yield zookeeper

    monkeypatch.setattr(lag, "open_session", access)
    monkeypatch.setattr(lag, "_PATIENCE", 0.2)
    monkeypatch.setattr(lag, "_PAUSE", 0.1)
    folder = _log(tmp_path, [NO_OP], [QUOTA], [NO_OP])
    named = {"zookeeper.connect": "zk:1"}
    sources = Sources.of({**named, "metadata.log.dir": folder})
    (warning,) = lag_warnings(sources)
    assert warning.startswith(
        "ZooKeeper lacks 1 ClientQuotaRecord of the metadata log; before a rollback, start"
    )
    (warning,) = lag_warnings(Sources.of(named))
    assert "set metadata.log.dir" in warning
    for changed in (
        {"kraft_metadata_offset": 5},
        {"kraft_metadata_offset": -1},
    ):
        zookeeper.znodes["/migration"] = changed
        assert lag_warnings(sources) == []
    assert lag_warnings(Sources.of({"metadata.log.dir": folder})) == []
    zookeeper.znodes["/migration"] = {"kraft_metadata_offset": 4}
    write_segment(Path(folder) / "__cluster_metadata-0", 7, [_state(3)])
    assert lag_warnings(sources) == []  # the migration has ended
