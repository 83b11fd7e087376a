"""`kbackup mirror`: what is refused before any cluster is asked, rounds as they run, status and translation."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.models import Transactions
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.cli import main
from kbackup.cli.backup import RoundReporter
from kbackup.cli.common.command_context import CommandContext, FlagValues, load_config
from kbackup.cli.common.output import Reporter
from kbackup.config.load import Setting, SettingOrigin
from kbackup.errors import UnreachableError
from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.common import Stop
from kbackup.kafka.control import cluster as control
from kbackup.metrics.registry import counted
from kbackup.metrics.server import JointHealth, samples
from kbackup.mirror import positions
from kbackup.mirror.apply.pending import Applied, Noted, PositionNote, Recreated
from kbackup.mirror.cli.reporter import ApplyRoundReporter
from kbackup.mirror.cli.run import MirrorProcess, make_halves, show_reports, start_server
from kbackup.mirror.flow import AppliedPosition, RemoteTopic, write_status
from kbackup.mirror.flow_map import FlowMapPartName
from kbackup.mirror.properties.flows import load_flows
from kbackup.mirror.records import Checkpoint
from kbackup.mirror.round import RoundReport
from kbackup.mirror.status import after_error, after_round, first_status
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.flow_maps import CLUSTERS, flow_of, map_of
from tests.support.made_segments import committed, state


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (CLUSTERS, ["--take", "--apply"], "--take and --apply exclude each other"),
        (CLUSTERS, ["--flow", "B->A"], "no flow B->A"),
        (CLUSTERS, ["--flow", "A-B"], "did you mean A->B?"),
        (CLUSTERS, ["--once"], "no archive is named"),
        (CLUSTERS, ["--apply"], "no archive is named"),
        (CLUSTERS.replace("A->B.enabled = true", ""), [], "A->B.enabled = true"),
        (CLUSTERS + "topics.blacklist = x", [], "topics.exclude"),
        *(
            (CLUSTERS + "B->A.enabled = true", [*half, "-a", "/tmp/x"], "A and B have one archive, /tmp/x")
            for half in ([], ["--take"], ["--apply"], ["--dry-run"])
        ),
        (CLUSTERS.replace("B.bootstrap", "#"), ["--apply", "-a", "/tmp/x"], "set B.bootstrap.servers"),
        (CLUSTERS, ["-a", "/tmp/x", "--listen", "nowhere"], "host:port"),
    ],
)
def test_a_wrong_selection_of_flows_is_refused(
    text: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(text)
    assert main(["mirror", str(file), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_file_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "run", str(tmp_path / "none.properties")]) == 2
    assert "none.properties: no such file" in capsys.readouterr().err


def test_translate_refuses_one_archive_of_two_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(CLUSTERS + "B->A.enabled = true")
    assert main(["mirror", "translate", str(file), "billing", "-a", "/tmp/x"]) == 2
    assert "A and B have one archive, /tmp/x" in capsys.readouterr().err


# Output of `kbackup mirror` while its halves run.


@pytest.fixture
def context() -> CommandContext:
    return CommandContext(load_config(FlagValues()), Reporter())


def test_a_mirror_whose_last_restore_point_has_transactions_in_part_ends_with_a_loss(context: CommandContext) -> None:
    in_part = FollowReport("file:///a", transactions=Transactions(whole=False, why="a transaction did not end"))
    whole = FollowReport("file:///a", transactions=Transactions(whole=True))
    assert show_reports(context, {"take A": in_part})
    assert not show_reports(context, {"take A": whole})
    assert not show_reports(context, {"take A": FollowReport("file:///a")}), "it made no restore point"


def test_refusals_are_told_once(context: CommandContext, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds between two that set the ACLs know nothing of them."""
    reporter = ApplyRoundReporter(context, None)
    no, none = {"acls": ("no authorizer",)}, dict[str, tuple[str, ...]]()
    counts: list[int] = []
    for refused in (no, none, no, {"acls": ()}, no):
        reporter.applied(flow_of(), RoundReport("A->B", 1, (), (), Applied(1), refused=refused))
        counts.append(capsys.readouterr().err.count("flow A->B: acls: "))
    assert counts == [1, 0, 0, 0, 1]


def test_topics_are_told_when_they_begin_and_when_they_cease_to_be_held_back(
    context: CommandContext, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = ApplyRoundReporter(context, None)
    lines: list[str] = []
    for refused in ({"A.orders": "too large"}, {"A.orders": "too large"}, dict[str, str]()):
        reporter.applied(flow_of(), RoundReport("A->B", 1, (), (), Applied(1), refused={"topics": refused}))
        lines.append(capsys.readouterr().err.strip())
    assert lines == [
        "warning: flow A->B: topics: A.orders: too large",
        "",
        "flow A->B: topic A.orders is no longer held back",
    ]


def last_success() -> float | None:
    return counted.snapshot().values.get(("kbackup_last_success_timestamp_seconds", ()))


def status_of(health: JointHealth) -> int:
    status, _ = health.answer()
    return status


def test_apply_half_hides_no_stale_take_half(context: CommandContext) -> None:
    counted.begin("mirror")
    joint = JointHealth(60, lambda: now)
    now = 0.0
    take = RoundReporter(context, joint.add_component("take A"), "take A: ")
    apply = ApplyRoundReporter(context, joint.add_component("apply A->B"))
    now = 61.0
    apply.record_success()
    assert status_of(joint) == 503
    assert last_success() is None
    take.record_success()
    assert status_of(joint) == 200
    assert last_success() is not None


def test_take_half_hides_no_other_one(context: CommandContext, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.begin("mirror")
    halves = {name: RoundReporter(context, None, f"take {name}: ") for name in ("A", "B")}
    for second, name in enumerate("AABAA", start=100):
        monkeypatch.setattr(time, "time", lambda second=second: float(second))
        with counted.of_archive(name):
            halves[name].record_success()
    ended = {
        dict(labels)["archive"]: value
        for (name, labels), value in samples(counted.snapshot()).items()
        if name == "kbackup_last_success_timestamp_seconds"
    }
    assert ended == {"A": 104, "B": 102}


def test_flow_that_waits_for_its_archive_is_not_well(context: CommandContext) -> None:
    now = 0.0
    joint = JointHealth(60, lambda: now)
    apply = ApplyRoundReporter(context, joint.add_component("apply A->B"))
    apply.waiting(flow_of(), "there is no archive at /x")
    assert joint.answer() == (200, "apply A->B: ok: 0 s; last error: there is no archive at /x\n")
    now = 61.0
    assert status_of(joint) == 503


def test_each_half_has_its_own_health(tmp_path: Path) -> None:
    """Two-way: two take halves and two apply halves in a process."""
    text = CLUSTERS + "B->A.enabled = true\n"
    properties = load_flows(text, archive=f"{tmp_path}/{{source}}")
    settings = [Setting("follow.listen", "127.0.0.1:0", SettingOrigin("flag", "--listen"))]
    context = CommandContext(load_config(FlagValues(settings=settings)), Reporter(quiet=True))
    with closing(Stop()) as stop, ExitStack() as stack:
        health = start_server(context, stack)
        assert health is not None
        process = MirrorProcess(lambda: pytest.fail("Spark"), stop, stop, health)
        halves = make_halves(context, properties, properties.flows, process, take=True, apply=True)
        status, text = health.answer()
        assert status == 200
        assert [line.partition(": ok")[0] for line in text.splitlines()] == [*halves]
        assert len(halves) == 4


def test_take_halves_say_which_source_a_restore_point_is_of(
    context: CommandContext, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways, each source has restore points of its own."""
    reporter = RoundReporter(context, None, "take B: ")
    totals = SimpleNamespace(records=3, bytes=10, segments=1)
    backed_up = SimpleNamespace(
        restore_point=7, warnings=(), losses=(), held_back=0, totals=totals, offline=(), deleted_records=0
    )
    reporter.committed(cast(BackupReport, backed_up))
    reporter.failed(UnreachableError("source cluster at b:9092 did not answer"), 2.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "take B: restore point 7: 3 new records, 10 B in 1 segment"
    assert "take B: source cluster at b:9092 did not answer; retrying in 2s" in lines[1]


# `kbackup mirror status`: what it prints of an archive's flows, for people and as JSON.


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """With a flow that has applied restore point 1 of 2 and holds a topic back."""
    made = make_archive(open_store(str(tmp_path_factory.mktemp("archive")), {}))
    positions = {
        TopicPartition("A.orders", 0): AppliedPosition(1, 10),
        TopicPartition("A.orders", 1): AppliedPosition(1, 12),
    }
    held_back = (Recreated("clicks", "A.clicks", 2, held_back=True),)
    applied = Applied(1, 22, 2048, positions, recreated=held_back, held_back=held_back, seconds=1.5)
    topics = [RemoteTopic("clicks", "A.clicks", 1), RemoteTopic("orders", "A.orders", 3)]
    refused = {"acls": ("the target has no authorizer",)}
    first = first_status(flow_of(), made.info.id, None)
    status = after_round(first, made.manifest(1), topics, applied, refused)
    write_status(made.store, after_error(status, "B did not answer"))
    return made


def test_status_of_a_mirror_shows_what_is_behind(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", archive.store.url, "--partitions"]) == 0
    out, err = capsys.readouterr()
    for text in (
        "A->B",
        "restore point 1 of 2",
        "44 records",  # 20 of clicks, 24 of orders
        "22 records (2.0 KiB) in 1.5s",
        "is held back (kbackup.on.recreate = stop)",
    ):
        assert text in out
    rows = [line.split() for line in out.splitlines()]
    assert ["orders", "A.orders", "3", "24", "-"] in rows
    positions = [row for row in rows if row[:1] in (["orders"], ["clicks"]) and len(row) == 3]
    assert positions == [["clicks", "0", "-"], ["orders", "0", "10"], ["orders", "1", "12"], ["orders", "2", "0"]]
    assert "acls: the target has no authorizer" in err
    assert "the last round failed: B did not answer" in err


def test_status_of_a_mirror_is_a_json_document_for_machines(
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mirror", "status", "--json", "-a", archive.store.url, "--flow", "A->B"]) == 0
    document = json.loads(capsys.readouterr().out)
    (flow,) = document["flows"]
    assert (flow["flow"], flow["restore_point"], flow["newest_restore_point"]) == ("A->B", 1, 2)
    assert flow["records_behind"] == 44
    assert flow["seconds_behind"] > 0
    assert flow["topics"][1] == {
        "topic": "orders",
        "remote": "A.orders",
        "incarnation": 1,
        "applied": [10, 12, 0],
        "records_behind": 24,
        "held_back": "",
        "held_since": "",
    }


def test_status_of_a_mirror_is_read_from_another_place(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mirror", "status", archive.store.url, "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no flow of this archive has begun\n"
    state = open_store(str(tmp_path), {})
    write_status(state, first_status(flow_of(), archive.info.id, None))
    assert main(["mirror", "status", archive.store.url, "--state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "restore point - of 2" in out
    assert re.search(r"^behind: +-, ", out, re.MULTILINE), "the topics are not known yet"
    assert re.search(r"^last round: +-$", out, re.MULTILINE)
    assert main(["mirror", "status", archive.store.url, "--state", str(tmp_path), "--json"]) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert flow["records_behind"] is None


def test_an_unknown_flow_is_refused_with_a_near_one(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "status", archive.store.url, "--flow", "A->C"]) == 2
    assert "hint: did you mean A->B?" in capsys.readouterr().err


# `kbackup mirror translate`: what it asks, and what it shows. The target is in memory.


Said = pytest.CaptureFixture[str]

REMOTE = TopicPartition("A.orders", 0)
OFFSETS = [*range(10), 15, *range(17, 40)]
"""Of the _unused's orders-0; the target has them in two transactions."""
PAIRS = [(source, n + (n >= 11)) for n, source in enumerate(OFFSETS)]
LOG_END = max(target for _, target in PAIRS) + 1
CHECKPOINTS = [
    Checkpoint("billing", REMOTE, 4, 4, ""),
    Checkpoint("late", REMOTE, 41, 30, ""),
    Checkpoint("billing", REMOTE, 17, 9, ""),
]


MAP_PART = "map/0000/0000000001-a.parquet"


class Map:
    slots = 0

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap:
        return map_of(PAIRS if (remote, incarnation) == (REMOTE, 1) else [])


class Target:
    """A cluster with a topic of checkpoints, unless `empty`."""

    empty = False

    def __init__(self, properties: dict[str, str], role: str) -> None:
        assert properties["bootstrap.servers"] == "b:9092"
        self.connection = SimpleNamespace(properties=properties)

    def connect(self) -> tuple[str, int]:
        return "cluster of B", 1

    def topics(self, names: Iterable[str]) -> dict[str, object]:
        return {} if self.empty else dict.fromkeys(names, object())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store = open_store(str(tmp_path / "A"))
    make_archive(store)
    store.put(layout.mirror_key("A", "B", MAP_PART), b"")
    position = Noted(AppliedPosition(1, 40), PositionNote(1, FlowMapPartName(1, "a"), 2))
    monkeypatch.setattr(control, "Cluster", Target)
    monkeypatch.setattr(positions, "read_positions", lambda *flow: {REMOTE: position})
    monkeypatch.setattr(positions, "open_map", lambda *flow: Map())
    monkeypatch.setattr(positions, "read_records", lambda *topic: iter(CHECKPOINTS))
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters = A, B\nA->B.enabled = true\nB.bootstrap.servers = b:9092\n"
        f"topics = orders\nkbackup.archive = {tmp_path}/{{source}}\n"
    )
    return path


def translate(capsys: Said, *arguments: object, code: int = 0) -> dict[str, Any]:
    assert cli.main(["mirror", "translate", *map(str, arguments), "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def offset(partition: int, committed: int, checkpoint: int | None, exact: int | None) -> dict[str, object]:
    answers = {"committed": committed, "checkpoint": checkpoint, "exact": exact}
    return {"topic": "A.orders", "partition": partition, **answers}


def test_the_last_checkpoint_stands_beside_the_exact_answer(file: Path, capsys: Said) -> None:
    """Of a partition without applied records there is neither, and topics that the flow leaves out are not shown."""
    (told,) = translate(capsys, file, "billing")["flows"]
    assert (told["flow"], told["group"], told["restore_point"]) == ("A->B", "billing", 2)
    assert told["offsets"] == [offset(0, 17, 9, 12), offset(1, 12, None, None)]
    (told,) = translate(capsys, file, "late", "--flow", "A->B")["flows"]
    assert told["offsets"] == [offset(0, 41, 30, LOG_END)]


def test_translation_is_printed_as_a_table(file: Path, capsys: Said) -> None:
    assert cli.main(["mirror", "translate", str(file), "billing"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("A.orders")]
    assert rows[0] == ["A.orders", "0", "17", "9", "12"]


def test_a_target_without_checkpoints(file: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "empty", True)
    (told,) = translate(capsys, file, "late")["flows"]
    assert told["offsets"] == [offset(0, 41, None, LOG_END)]


def test_a_position_that_the_target_has_forgotten_is_told(
    file: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 1 was never applied: nothing is forgotten of it."""
    monkeypatch.setattr(positions, "read_positions", lambda *flow: {})
    assert cli.main(["mirror", "translate", str(file), "billing", "--json"]) == 0
    said = capsys.readouterr()
    (told,) = json.loads(said.out)["flows"]
    assert told["offsets"] == [offset(0, 17, 9, None), offset(1, 12, None, None)]
    assert told["forgotten"] == {"A.orders-0": "the target holds other records than the map says"}
    assert "A->B: no exact position for A.orders-0" in said.err


def test_an_archive_that_went_back_is_refused(
    file: Path, capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert translate(capsys, file, "billing")
    store = open_store(str(tmp_path / "A"))
    newest = max(layout.parse_catalog_key(entry.key) or 0 for entry in store.list(layout.CATALOG))
    store.delete([layout.catalog_key(newest), layout.LATEST, layout.DERIVED])
    error = translate(capsys, file, "billing", code=10)["error"]
    assert f"this machine has seen catalog {newest}" in error["message"]
    assert translate(capsys, file, "billing", "--accept-rollback")


def test_another_archive_with_the_same_aliases_is_named_as_such(file: Path, capsys: Said, tmp_path: Path) -> None:
    """It has never seen the records of which the target holds positions."""
    open_store(str(tmp_path / "A")).delete([layout.mirror_key("A", "B", MAP_PART)])
    error = translate(capsys, file, "billing", code=10)["error"]
    assert "another archive with the same aliases" in error["message"]
    assert "bucket version" not in error["hint"]


@pytest.fixture
def two_flows(file: Path, tmp_path: Path) -> Path:
    """The flow of A, and one of C, which has other groups."""
    committed(open_store(str(tmp_path / "C")), 1, topics=[state((0, 0, 0), number=1)])
    file.write_text(file.read_text().replace("clusters = A, B", "clusters = A, B, C") + "C->B.enabled = true\n")
    return file


def test_a_group_is_found_in_the_flow_that_knows_it(
    two_flows: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "read_records", lambda *topic: iter(CHECKPOINTS if "A" in topic[2] else ()))
    shown = translate(capsys, two_flows, "billing")["flows"]
    assert [flow["flow"] for flow in shown] == ["A->B"]


def test_a_group_that_no_flow_knows_is_refused_with_all_flows(
    two_flows: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "read_records", lambda *topic: iter(()))
    error = translate(capsys, two_flows, "nobody", code=2)["error"]
    assert "asked: A->B, C->B" in error["message"]


def test_a_flow_that_was_not_asked_is_told_beside_the_one_that_knows_the_group(file: Path, capsys: Said) -> None:
    """The archive of C is not there yet."""
    file.write_text(file.read_text().replace("clusters = A, B", "clusters = A, B, C") + "C->B.enabled = true\n")
    assert cli.main(["mirror", "translate", str(file), "billing", "--json"]) == 0
    said = capsys.readouterr()
    assert [flow["flow"] for flow in json.loads(said.out)["flows"]] == ["A->B"]
    assert f"{file.parent}/C" in said.err


def test_another_archive_is_refused(file: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBACKUP_ARCHIVE_ID", "0" * 32)
    assert "archive_id" in str(translate(capsys, file, "billing", code=10)["error"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["biling"], "knows no position of group biling"), (["late", "--flow", "A->X"], "no flow A->X")],
)
def test_unknown_names_are_refused(file: Path, capsys: Said, arguments: list[str], message: str) -> None:
    error = translate(capsys, file, *arguments, code=2)["error"]
    assert message in error["message"]
    assert error["hint"]
