"""The state of a migration, from every combination of witnesses."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import get_args

import pytest

from kbackup.errors import CorruptError, MismatchError, UsageError
from kbackup.metadata.sources import MetricsAccess, Sources
from kbackup.migrate import lag
from kbackup.migrate.exporters import parse_metrics, read_metrics
from kbackup.migrate.lag import Lag, is_written_by_kraft, lag_warnings, read_lag
from kbackup.migrate.metadata_log.codec import MetadataRecord, record
from kbackup.migrate.states import (
    REVERSIBLE,
    ControllerZnode,
    KafkaState,
    LogWitness,
    MetricsWitness,
    NotRead,
    State,
    Witnesses,
    ZnodesWitness,
    claims_of,
    judge,
)
from kbackup.migrate.znodes import ZnodeContent, ZooKeeperFindings, read_findings, read_witness
from tests.support.healthy_cluster import OF_KRAFT as KRAFT_ZNODE
from tests.support.local_http import Quiet, serving
from tests.support.metadata_records import write_segment
from tests.support.migration_states import (
    BROKERS,
    COPIED,
    MIGRATION,
    NOBODY,
    NONE,
    OF_KRAFT,
    OF_ZK,
    POST,
    PRE,
    UNREAD,
    WAITING,
    ZK,
    FakeZooKeeper,
    log,
    metrics,
    witnesses,
)

RUNBOOK: list[tuple[State, MetricsWitness | None, ZnodesWitness, LogWitness | None]] = [
    ("zookeeper", None, ZnodesWitness(OF_ZK, None, BROKERS), None),
    ("pre-migration", metrics(PRE, 0), ZnodesWitness(OF_ZK, WAITING, BROKERS), log(PRE, NOBODY)),
    ("dual write", metrics(MIGRATION), ZnodesWitness(OF_KRAFT, COPIED, BROKERS), log(MIGRATION)),
    ("brokers moved", metrics(MIGRATION, 0), ZnodesWitness(OF_KRAFT, COPIED, NOBODY), log(MIGRATION, NOBODY)),
    ("finished", metrics(POST, 0), ZnodesWitness(OF_KRAFT, COPIED, NOBODY), log(POST, NOBODY)),
]


@pytest.mark.parametrize("row", RUNBOOK, ids=[row[0] for row in RUNBOOK])
def test_each_state_of_the_runbook(row: tuple[State, MetricsWitness | None, ZnodesWitness, LogWitness | None]) -> None:
    """By all witnesses, and by each two of which one are the znodes."""
    state, of_metrics, znodes, of_log = row
    for observed in (
        witnesses(of_metrics, znodes, of_log),
        witnesses(of_metrics or None, znodes, None),
        witnesses(None, znodes, of_log),
    ):
        if state == "zookeeper" or not (isinstance(observed.metrics[0], NotRead) and isinstance(observed.log, NotRead)):
            report = judge(observed)
            assert (report.state, report.is_certain, report.disagreements) == (state, True, ())
            assert bool(report.waits_for) == (state == "pre-migration")
            assert report.way_back == (state != "finished")


def test_znodes_alone_never_prove_the_end() -> None:
    report = judge(witnesses(znodes=ZnodesWitness(OF_KRAFT, COPIED, NOBODY)))
    assert report.state == "unknown"
    assert not report.is_certain
    assert report.possible == ("dual write", "brokers moved", "finished")
    assert not report.way_back
    assert "--metrics-url" in report.next_step


@pytest.mark.parametrize("brokers", [BROKERS, NOBODY])
@pytest.mark.parametrize(("controller", "migration"), [(OF_KRAFT, None), (OF_ZK, COPIED), (None, COPIED)])
def test_half_of_the_deletes(
    controller: ControllerZnode | None, migration: int | None, brokers: frozenset[int]
) -> None:
    report = judge(witnesses(znodes=ZnodesWitness(controller, migration, brokers)))
    assert (report.state, report.way_back) == ("half rolled back", True)
    assert report.waits_for == ("the rest of the rollback",)
    assert "kbackup migrate rollback" in report.next_step


def test_the_log_of_stopped_controllers_does_not_know_of_half_of_the_deletes() -> None:
    for controller, migration in ((OF_KRAFT, None), (OF_ZK, COPIED), (None, COPIED)):
        report = judge(witnesses(None, ZnodesWitness(controller, migration, BROKERS), log(MIGRATION)))
        assert (report.state, report.is_certain, report.way_back) == ("half rolled back", True, True)
        running = judge(witnesses(metrics(MIGRATION), ZnodesWitness(controller, migration, BROKERS)))
        assert not running.is_certain
    assert judge(witnesses(of_log=log(MIGRATION))).state == "dual write"


def test_the_log_that_a_rollback_leaves_is_to_be_deleted() -> None:
    report = judge(witnesses(None, ZnodesWitness(OF_ZK, None, BROKERS), log(MIGRATION)))
    assert (report.state, report.is_certain, report.way_back) == ("zookeeper", False, True)
    assert "controllers' storage" in report.next_step


def test_a_controller_that_is_not_active_is_a_standby() -> None:
    for active, role in ((True, "the active controller"), (False, "a standby controller"), (None, "a node")):
        (claim,) = claims_of(witnesses(metrics(MIGRATION, active=active)))
        assert claim.says.startswith(f"{role} at ")


def test_a_quorum_without_migration_beside_zookeeper() -> None:
    """The quorum never migrates: its log began without a migration."""
    report = judge(witnesses(metrics(NONE, 0), ZnodesWitness(OF_ZK, None, BROKERS)))
    assert report.state == "zookeeper"
    assert "format" in report.next_step


def test_a_cluster_without_zookeeper() -> None:
    assert judge(witnesses(metrics(NONE, 0))).possible == ("zookeeper", "kraft")
    assert judge(witnesses(metrics(NONE, 0))).state == "unknown"


def test_metrics_of_a_broker_prove_little() -> None:
    """A broker that runs with ZooKeeper says ZK in every state that it can be in."""
    broker = metrics(ZK, None, active=None)
    for state, _, znodes, _ in RUNBOOK[:3]:
        assert judge(witnesses(broker, znodes)).state == state
    report = judge(replace(witnesses(metrics(PRE, 1)), metrics=(broker, metrics(PRE, 1))))
    assert (report.state, report.zk_brokers) == ("pre-migration", 1)
    assert judge(witnesses(broker)).possible == ("zookeeper", "pre-migration", "dual write")


def test_the_active_controller_is_believed() -> None:
    behind = metrics(PRE, 2, active=False)
    report = judge(Witnesses((behind, metrics(MIGRATION)), UNREAD, UNREAD))
    assert (report.state, report.is_certain) == ("dual write", False)
    (disagreement,) = report.disagreements
    assert "PRE_MIGRATION" in disagreement
    assert "does not fit dual write" in disagreement


def test_a_log_that_says_the_end_forbids_the_way_back() -> None:
    """Though the znodes are believed: nobody shall go back from a finished migration."""
    report = judge(witnesses(znodes=ZnodesWitness(OF_KRAFT, COPIED, BROKERS), of_log=log(POST, NOBODY)))
    assert report.state == "dual write"
    assert report.disagreements
    assert not report.way_back
    assert "disagree" in report.next_step


def test_state_is_unknown_without_witnesses() -> None:
    report = judge(Witnesses((), UNREAD, UNREAD))
    assert (report.state, report.possible, report.is_certain, report.way_back) == ("unknown", (), False, False)
    assert report.not_looked_at == (UNREAD, UNREAD)
    assert (report.lag, report.zk_brokers) == (None, None)


def test_lag_and_brokers_are_the_active_controllers() -> None:
    observed = Witnesses(
        (MetricsWitness("a", MIGRATION, False, 1, 0), MetricsWitness("b", MIGRATION, True, 2, 7)), UNREAD, UNREAD
    )
    assert (judge(observed).lag, judge(observed).zk_brokers) == (7, 2)
    assert judge(witnesses(of_log=log(MIGRATION))).zk_brokers == 2


METRICS = [None, metrics(None, 0), *(metrics(s, count) for s in KafkaState for count in (None, 0, 2))]
ZNODES = [
    None,
    *(
        ZnodesWitness(c, m, b)
        for c in (None, OF_KRAFT, OF_ZK)
        for m in (None, WAITING, COPIED)
        for b in (BROKERS, NOBODY)
    ),
]
LOGS = [None, *(log(s, brokers) for s in KafkaState if s is not ZK for brokers in (BROKERS, NOBODY))]


def test_each_combination_of_witnesses_gives_a_state_that_they_allow() -> None:
    """17 metrics, 19 znodes, 9 logs: what is certain follows from all of them, and what disagrees is told."""
    seen: set[State] = set()
    for of_metrics, znodes, of_log in itertools.product(METRICS, ZNODES, LOGS):
        told = witnesses(of_metrics, znodes, of_log)
        report, claims = judge(told), claims_of(told)
        seen.add(report.state)
        assert len(claims) == sum(part is not None for part in (of_metrics, znodes, of_log))
        assert len(report.not_looked_at) == 3 - len(claims)
        common = frozenset(get_args(State))
        for claim in claims:
            common &= claim.states
        assert bool(report.disagreements) == (not common)
        if report.is_certain:
            assert common == {report.state}
        elif common and claims:
            assert set(report.possible) == common
            assert len(common) > 1
        if claims:
            assert set(report.possible) <= claims[0].states
        if any(claim.states == {"finished"} for claim in claims):
            assert not report.way_back
        if report.way_back:
            assert set(report.possible) <= REVERSIBLE
        assert report.next_step
    assert seen == set(get_args(State)) - {"kraft"}  # no witness tells it from a quorum beside ZooKeeper


# The name of each thing that a migration waits for.


def test_a_controller_without_a_leader_proves_nothing() -> None:
    """Kafka's metric is -1 until a controller has seen metadata."""
    waiting = metrics(None, 0, active=False)
    report = judge(witnesses(waiting, ZnodesWitness(OF_ZK, WAITING, BROKERS)))
    assert (report.state, report.zk_brokers, report.lag) == ("pre-migration", None, None)
    assert report.waits_for[0] == "a leader of the controllers' quorum"
    assert "majority" in report.next_step
    (claim,) = claims_of(witnesses(waiting))
    assert claim.says == "a controller at http://None: no leader yet"
    started = judge(Witnesses((waiting, metrics(MIGRATION)), UNREAD, UNREAD))
    assert (started.state, started.is_certain, started.waits_for) == ("dual write", True, ())


def test_brokers_that_block_are_named() -> None:
    """By the metadata log; without one, as far as the number of registered brokers tells."""
    znodes = ZnodesWitness(OF_ZK, WAITING, BROKERS, frozenset({2, 3}))
    one, all_three = frozenset({1}), frozenset({1, 2, 3})
    missing = "which has not registered with the controllers"
    expected: dict[LogWitness | MetricsWitness, tuple[str, ...]] = {
        log(PRE, NOBODY): (f"broker 1, {missing}", f"broker 2, {missing}", f"broker 3, {DOWN}"),
        log(PRE, one): (f"broker 2, {missing}", f"broker 3, {DOWN}"),
        log(PRE, all_three): (COPY,),
        metrics(PRE, 0): (f"broker 1, {missing}", f"broker 2, {missing}", f"broker 3, {DOWN}"),
        metrics(PRE, 2): ("some of the brokers 1, 2, 3; to see which, set metadata.log.dir in [source]",),
        metrics(PRE, 3): (COPY,),
        metrics(PRE, None): ("some of the brokers 1, 2, 3; to see which, set metadata.log.dir in [source]",),
    }
    for witness, waits in expected.items():
        of_log = witness if isinstance(witness, LogWitness) else None
        of_metrics = witness if isinstance(witness, MetricsWitness) else None
        assert judge(witnesses(of_metrics, znodes, of_log)).waits_for == waits, witness
    assert judge(witnesses(metrics(PRE, 1))).waits_for == ("brokers; to see which, set zookeeper.connect in [source]",)


DOWN = "which is down and has not registered with the controllers"
COPY = "the controllers' copy: every broker has registered; look into the active controller's log"


def test_zookeeper_that_does_not_follow_is_named() -> None:
    def look(lag: int, offset: int | None) -> Witnesses:
        znodes = None if offset is None else ZnodesWitness(OF_KRAFT, offset, BROKERS)
        return witnesses(MetricsWitness("u", MIGRATION, True, 2, lag), znodes)

    stalled = ("ZooKeeper, which does not get the controllers' records",)
    for before, after, waits in (
        (look(3, 99), look(7, 99), stalled),
        (look(3, 99), look(7, None), stalled),
        (look(3, 99), look(3, 103), ()),
        (look(3, 99), look(2, 99), ()),
        (look(0, 99), look(7, 99), ()),
    ):
        report = judge(after, before)
        assert (report.waits_for, "0 records behind" in report.next_step) == (waits, bool(waits))
    assert judge(look(7, 99)).waits_for == ()


def test_the_lag_is_that_of_the_active_controller() -> None:
    standby = MetricsWitness("a", MIGRATION, False, 2, 0)
    assert judge(witnesses(standby)).lag is None
    assert judge(Witnesses((standby, MetricsWitness("b", MIGRATION, True, 2, 7)), UNREAD, UNREAD)).lag == 7


# The lag of ZooKeeper behind the controllers' metadata logs.


A = "AAAAAAAAAAAAAAAAAAAAAQ"
TOPIC = [
    record("TopicRecord", {"name": "orders", "topicId": A}),
    record("PartitionRecord", {"topicId": A, "partitionId": 0, "replicas": [1], "isr": [1], "leader": 1}),
]
QUOTA = record("ClientQuotaRecord", {"entity": [{"entityType": "user", "entityName": "u"}], "key": "k", "value": 1.0})
NO_OP = record("NoOpRecord")


def _leader(*voters: int) -> MetadataRecord:
    listed = [{"voterId": voter} for voter in voters]
    return MetadataRecord("LeaderChangeMessage", 2, 0, {"leaderId": voters[0], "voters": listed}, control=True)


def _state(number: int) -> MetadataRecord:
    return record("ZkMigrationStateRecord", {"zkMigrationState": number})


def _log(
    folder: Path, *later: list[MetadataRecord], node: int = 1, voters: tuple[int, ...] = (1,), epoch: int = 1
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
            "/controller": KRAFT_ZNODE,
            "/migration": {"version": 0, "kraft_metadata_offset": offset},
            **dict.fromkeys(("/brokers/ids", "/brokers/topics", "/config/topics"), b""),
            "/brokers/topics/orders": {"version": 3, "topic_id": A, "partitions": {"0": [1]}},
            "/config/topics/orders": {"version": 1, "config": {}},
            "/brokers/ids/1": {},
        }
        | changed
    )


def _witness(offset: int | None) -> ZnodesWitness:
    return ZnodesWitness(ControllerZnode(3000, 5), offset, frozenset())


def _read(offset: int, *folders: str) -> Lag | NotRead:
    return read_lag(_zookeeper(offset), folders, _witness(offset))


def test_every_record_is_in_zookeeper(tmp_path: Path) -> None:
    folder = _log(tmp_path, [NO_OP, NO_OP])
    assert _read(5, folder) == Lag(6, {}, ())
    assert _read(3, folder) == Lag(6, {}, ())  # what follows is nothing for ZooKeeper


def test_records_and_entities_that_zookeeper_lacks(tmp_path: Path) -> None:
    folder = _log(tmp_path, [QUOTA, NO_OP, QUOTA, MetadataRecord("", 99, 0, b"?")])
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


@pytest.mark.exhaustive
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
    zookeeper = _zookeeper(3)
    zookeeper.denied = {"/config/topics/orders"}
    answer = read_lag(zookeeper, [folder], _witness(3))
    assert isinstance(answer, NotRead)
    assert "/config/topics/orders may not be read" in answer.why
    with pytest.raises(MismatchError):
        read_lag(_zookeeper(3, **{"/cluster/id": {"id": "d"}}), [folder], _witness(3))


def test_before_the_copy_zookeeper_has_more_than_the_log(tmp_path: Path) -> None:
    assert _read(-1, _log(tmp_path, [_state(2)])) == Lag(5, {}, ())


def test_the_writer_of_zookeeper_follows_from_both_znodes() -> None:
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
        written = is_written_by_kraft(ZnodesWitness(controller, offset, frozenset()))
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
    assert warning.startswith("ZooKeeper lacks 1 ClientQuotaRecord of the metadata log; before a rollback, start")
    (warning,) = lag_warnings(Sources.of(named))
    assert "set metadata.log.dir" in warning
    for changed in ({"kraft_metadata_offset": 5}, {"kraft_metadata_offset": -1}):
        zookeeper.znodes["/migration"] = changed
        assert lag_warnings(sources) == []
    assert lag_warnings(Sources.of({"metadata.log.dir": folder})) == []
    zookeeper.znodes["/migration"] = {"kraft_metadata_offset": 4}
    write_segment(Path(folder) / "__cluster_metadata-0", 7, [_state(3)])
    assert lag_warnings(sources) == []  # the migration has ended


# Metrics of a controller, by the names that exporters make of them.


PLAIN = """\
# HELP kafka_controller_KafkaController_Value Attribute exposed for management
# TYPE kafka_controller_KafkaController_Value untyped
kafka_controller_KafkaController_Value{name="ActiveControllerCount",} 1.0
kafka_controller_KafkaController_Value{name="ZkMigrationState",} 1.0
kafka_controller_KafkaController_Value{name="ZkWriteBehindLag",} 12.0
kafka_controller_KafkaController_Value{name="MigratingZkBrokerCount",} 3.0
kafka_controller_KafkaController_Value{name="OfflinePartitionsCount",} 9.0
kafka_server_Other_Value{name="ZkMigrationState",} 0.0
"""
LOWER = """\
kafka_controller_kafkacontroller_activecontrollercount 1.0
kafka_controller_kafkacontroller_zkmigrationstate 1.0
kafka_controller_kafkacontroller_zkwritebehindlag 12.0
kafka_controller_kafkacontroller_migratingzkbrokercount 3.0
"""
VALUES = """\
kafka_controller_KafkaController_ActiveControllerCount_Value 1.0
kafka_controller_KafkaController_ZkMigrationState_Value 1.0
kafka_controller_KafkaController_ZkWriteBehindLag_Value 12.0
kafka_controller_KafkaController_MigratingZkBrokerCount_Value 3.0
"""
LABELLED = """\
kafka_controller_value{type="KafkaController",name="ActiveControllerCount"} 1.0
kafka_controller_value{type="KafkaController",name="ZkMigrationState"} 1.0
kafka_controller_value{type="KafkaController",name="ZkWriteBehindLag"} 12.0
kafka_controller_value{type="KafkaController",name="MigratingZkBrokerCount"} 3.0
"""
SNAKE = """\
kafka_controller_kafka_controller_active_controller_count 1.0
kafka_controller_kafka_controller_zk_migration_state 1.0
kafka_controller_kafka_controller_zk_write_behind_lag 12.0
kafka_controller_kafka_controller_migrating_zk_broker_count 3.0
"""


@pytest.mark.parametrize("text", [PLAIN, LOWER, VALUES, LABELLED, SNAKE])
def test_metrics_are_read_under_the_names_of_any_exporter(text: str) -> None:
    assert parse_metrics(text, "u") == MetricsWitness("u", KafkaState.MIGRATION, True, 3, 12)


@pytest.mark.parametrize(
    ("number", "name"), [(0, "NONE"), (1, "MIGRATION"), (2, "PRE_MIGRATION"), (3, "POST_MIGRATION"), (4, "ZK")]
)
def test_numbers_of_kafka(number: int, name: str) -> None:
    """MIGRATION is 1 and PRE_MIGRATION 2: Kafka 3.5 exchanged them."""
    text = f"kafka_controller_kafkacontroller_zkmigrationstate {number}\n"
    assert parse_metrics(text, "u") == MetricsWitness("u", KafkaState[name])


def test_a_controller_that_knows_no_leader_has_no_state() -> None:
    text = "kafka_controller_kafkacontroller_zkmigrationstate -1\n"
    assert parse_metrics(text, "u") == MetricsWitness("u", None)


@pytest.mark.parametrize(
    "text",
    ["", "up 1\n", "<html>", "kafka_controller_kafkacontroller_zkmigrationstate 7\n", PLAIN.replace("1.0", "NaN")],
)
def test_text_that_has_no_metric_of_a_migration_is_refused(text: str) -> None:
    with pytest.raises(CorruptError, match=r"^u "):
        parse_metrics(text, "u")


@pytest.fixture
def exporter() -> Iterator[str]:
    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            login = "Basic " + base64.b64encode(b"watcher:hush").decode()
            paths = {"/metrics?a=b": 200, "/secured": 200 if self.headers["Authorization"] == login else 401}
            self.send_response(302 if self.path == "/moved" else paths.get(self.path, 404))
            if self.path == "/moved":
                self.send_header("Location", "/secured")
            self.end_headers()
            self.wfile.write(PLAIN.encode())

    with serving(Handler) as url:
        yield url


def test_metrics_are_read_from_an_exporter(exporter: str) -> None:
    told = read_metrics(f"{exporter}/metrics?a=b", MetricsAccess())
    assert isinstance(told, MetricsWitness)
    assert (told.url, told.state) == (f"{exporter}/metrics", KafkaState.MIGRATION)


def test_an_exporter_that_does_not_answer_is_named_with_a_hint(exporter: str) -> None:
    for url in (f"{exporter}/other", "http://127.0.0.1:1/metrics"):
        told = read_metrics(url, MetricsAccess())
        assert isinstance(told, NotRead)
        assert url in told.why
        assert told.hint


def test_a_password_goes_to_the_named_exporter_alone(exporter: str) -> None:
    told = read_metrics(f"{exporter}/secured", MetricsAccess(user="watcher", password="hush"))
    assert isinstance(told, MetricsWitness)
    for path, access in (
        ("secured", MetricsAccess()),
        ("secured", MetricsAccess(user="watcher", password="other")),
        ("moved", MetricsAccess(user="watcher", password="hush")),  # only the exporter that is named gets it
    ):
        refused = read_metrics(f"{exporter}/{path}", access)
        assert isinstance(refused, NotRead)
        assert "hush" not in repr(refused)
        assert "set controller.metrics.username" in refused.hint


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    broken = tmp_path / "trusted.pem"
    broken.write_text("nothing")
    for file in (broken, tmp_path / "missing.pem"):
        with pytest.raises(UsageError, match=r"controller\.metrics\.ssl\.truststore\.location: can't use .*\.pem"):
            read_metrics("https://127.0.0.1:1/metrics", MetricsAccess(certificates=str(file)))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "localhost:9404", "http://", "http://user:secret@host/metrics"])
def test_an_address_that_is_no_http_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_metrics(url, MetricsAccess())
    assert "secret" not in str(raised.value)


# Kafka's znodes, as preflight, status and rollback read them.


CLUSTER: dict[str, object] = {
    "/cluster/id": {"version": "1", "id": "L05pbYc6Q4qlvxLk3rTO9A"},
    "/brokers/ids/1": {},
    "/brokers/ids/2": {},
    "/brokers/topics/orders": {"version": 3, "topic_id": "x", "partitions": {"0": [1, 2], "1": [2, 4]}},
    "/brokers/topics/b": {
        "version": 3,
        "partitions": {"0": [1, 2], "1": [1]},
        "adding_replicas": {"0": [2]},
        "removing_replicas": {},
    },
    "/config/brokers/<default>": {},
    "/config/brokers/7": {"config": {"log.retention.ms": "1", "ssl.key.password": "salt:x,encryptedPassword:y"}},
    "/admin/delete_topics/old": b"",
}


def test_findings_are_read_from_znodes() -> None:
    found = read_findings(FakeZooKeeper(CLUSTER))
    assert replace(found, unreadable=()) == ZooKeeperFindings(
        cluster_id="L05pbYc6Q4qlvxLk3rTO9A",
        alive=frozenset({1, 2}),
        known=frozenset({1, 2, 4, 7}),
        deletions=("old",),
        reassigning=("b-0",),
        encrypted={"ssl.key.password of broker 7": "salt:x,encryptedPassword:y"},
    )
    assert read_findings(FakeZooKeeper({})).cluster_id == ""


def test_controller_of_a_broker() -> None:
    """Kafka 3.9 writes the epoch -1; older releases none."""
    for extra in ({"kraftControllerEpoch": -1}, {}):
        znodes = FakeZooKeeper(
            {**CLUSTER, "/controller": {"version": 2, "brokerid": 1, **extra}}, frozenset({"/controller"})
        )
        witness, (content,) = read_witness(znodes)
        assert witness == ZnodesWitness(ControllerZnode(1, -1), None, frozenset({1, 2}))
        assert content.ephemeral


def test_controller_of_the_quorum() -> None:
    znodes = {
        "/controller": {"version": 2, "brokerid": 3000, "kraftControllerEpoch": 5},
        "/migration": {"kraft_metadata_offset": 99, "kraft_controller_id": 3000},
    }
    witness, contents = read_witness(FakeZooKeeper(dict(znodes)))
    assert witness == ZnodesWitness(ControllerZnode(3000, 5), 99, frozenset())
    assert contents[1] == ZnodeContent(
        "/migration", '{"kraft_metadata_offset": 99, "kraft_controller_id": 3000}', 0, False
    )


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", {}, {"brokerid": "one"}])
def test_a_znode_with_other_content_is_refused(data: object) -> None:
    with pytest.raises(CorruptError, match="znode /controller"):
        read_witness(FakeZooKeeper({"/controller": data}))
