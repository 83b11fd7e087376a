"""Positions of groups after the apply half, and `kbackup mirror translate`."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbackup.archive import layout
from kbackup.cli import main
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Silent
from kbackup.mirror.apply.applier import Applier
from kbackup.mirror.apply.pending import Applied, read_positions
from kbackup.mirror.flow import Flow, RemoteTopic
from kbackup.mirror.internal import InternalTopics, emit_checkpoints, emit_offset_syncs
from kbackup.mirror.positions import AppliedTopics
from kbackup.mirror.properties.flows import load_flows
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.support.archives import make_archive
from tests.support.truth import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Said = pytest.CaptureFixture[str]


@dataclass
class Made:
    """A flow whose target has all of `archives.make_archive`, and its properties file."""

    broker: Broker
    flow: Flow
    file: Path
    applied: Applied

    @property
    def remote(self) -> str:
        return f"{self.flow.source}.orders"

    def truth(self, partition: int, committed: int) -> int:
        """Return the target offset of the first record at or after an offset of the source.

        The value of each record holds its offset in the source.
        """
        records = read_topic(self.broker.bootstrap, self.remote)[partition]
        pairs = [(int((r.value or b"").split()[1]), r.offset) for r in records]
        return next((target for source, target in pairs if source >= committed), pairs[-1][1] + 1)

    def translate(self, capsys: Said, group: str, *arguments: str) -> dict[str, Any]:
        assert main(["mirror", "translate", str(self.file), group, *arguments, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document


def no_spark() -> SparkSession:
    raise AssertionError("a small round needs no Spark")


@pytest.fixture(scope="module")
def made(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("positions")
    alias = f"Z{secrets.token_hex(4)}"
    store = FileStore(folder / "archive")
    archive = make_archive(store)
    file = folder / "mm2.properties"
    file.write_text(
        f"""
        clusters = {alias}, B
        B.bootstrap.servers = {broker.bootstrap}
        {alias}->B.enabled = true
        kbackup.archive = file://{folder}/archive
        emit.heartbeats.enabled = false
        replication.factor = 1
        checkpoints.topic.replication.factor = 1
        offset-syncs.topic.replication.factor = 1
        """
    )
    (flow,) = load_flows(file).flows
    assert flow.target_properties is not None
    broker.create_topic(f"{alias}.orders", 3)
    topics = [RemoteTopic("orders", f"{alias}.orders", 3)]
    point = archive.restore_point("latest")
    cluster = Cluster(flow.target_properties, "target")
    with (
        Applier(flow, flow.target_properties, store, no_spark, Silent(), transaction_bytes=1_000) as applier,
        InternalTopics(flow, cluster) as internal,
    ):
        applied = applier.apply(archive, point, topics)
        in_target = AppliedTopics(topics, applied.positions, applier.map)
        emit_offset_syncs(flow, internal, in_target)
        emit_checkpoints(flow, internal, archive, point, in_target)
    return Made(broker, flow, file, applied)


def test_translate_shows_what_java_reads_and_the_exact_answer(made: Made, capsys: Said) -> None:
    (told,) = made.translate(capsys, "billing")["flows"]
    assert (told["flow"], told["group"], told["restore_point"]) == (made.flow.name, "billing", 2)
    unapplied = {"topic": f"{made.flow.source}.clicks", "partition": 0, "committed": 5}
    assert told["offsets"] == [
        unapplied | {"checkpoint": None, "exact": None},
        *(
            {
                "topic": made.remote,
                "partition": p,
                "committed": committed,
                "checkpoint": made.truth(p, committed),
                "exact": made.truth(p, committed),
            }
            for p, committed in ((0, 17), (1, 12))
        ),
    ]


def test_a_group_at_the_end_goes_on_at_the_end(made: Made, capsys: Said) -> None:
    ((offset,),) = [flow["offsets"] for flow in made.translate(capsys, "late", "--flow", made.flow.name)["flows"]]
    last = read_topic(made.broker.bootstrap, made.remote)[0][-1].offset
    assert (offset["committed"], offset["exact"], offset["checkpoint"]) == (41, last + 1, last + 1)


def test_positions_that_the_target_has_forgotten_are_read_back(made: Made, capsys: Said) -> None:
    """The offset map answers, also for the part that was committed last. Nothing is written to the target."""
    cluster = Cluster(made.flow.client("target"), "target")
    group = layout.mirror_group(made.flow.source, made.flow.target)
    before = [made.translate(capsys, name) for name in ("billing", "late")]
    cluster.groups.delete([group])
    assert [made.translate(capsys, name) for name in ("billing", "late")] == before
    assert not read_positions(cluster, made.flow.source, made.flow.target)


def test_a_flow_that_never_ran_has_no_answers(made: Made, capsys: Said, tmp_path: Path) -> None:
    other = f"Y{secrets.token_hex(4)}"
    file = tmp_path / "mm2.properties"
    file.write_text(made.file.read_text().replace(made.flow.source, other))
    (told,) = Made(made.broker, made.flow, file, made.applied).translate(capsys, "late")["flows"]
    assert told["offsets"] == [
        {"topic": f"{other}.orders", "partition": 0, "committed": 41, "checkpoint": None, "exact": None}
    ]
