"""formats/archive.md, restores.md, mirrors.md and their schemas against files that the writers make."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints
from uuid import UUID

import jsonschema
import msgspec
import pyarrow as pa
import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Operation
from kbackup.archive.catalog.state import SCHEMAS
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    ArchiveInfo,
    Document,
    GroupOffset,
    Groups,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    TopicState,
    dump,
    load,
)
from kbackup.archive.query.content import content_of
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores import offset_map
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan, write_plan
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.errors import CorruptError
from kbackup.jobs.drill.report import store_report
from kbackup.jobs.export.destination import ExportedFile, ExportedPoint, ExportInfo, Reached, Seen
from kbackup.jobs.groups.documents import Captures, GroupBefore
from kbackup.jobs.groups.plan import map_groups
from kbackup.jobs.points import label, pin
from kbackup.jobs.restore.plan import make_units, plan_topic
from kbackup.jobs.restore.report import RestoredTopic, RestoreReport
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.settings.documents import SettingsCaptures
from kbackup.jobs.settings.plan import Changes, QuotaChange
from kbackup.jobs.verify import record_verification, verify
from kbackup.metadata.entities import BrokerConfig, GroupConfig, NotCarried, ScramUser, TopicMetadata
from kbackup.metrics.registry import Silent
from kbackup.mirror.flow import write_status
from kbackup.mirror.flow_map import (
    EXACT,
    FOLD,
    SHARE,
    SLACK,
    SLOTS,
    FlowMapPartName,
    FlowState,
    flow_runs_table,
    folder,
    slot_of,
    write_flow_map_part,
)
from kbackup.mirror.flow_map import MAP_SCHEMA as FLOW_MAP
from kbackup.mirror.status import first_status
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.store.crypt.keyring import KEYS, KeyFile
from kbackup.types import TopicPartition
from scripts.docs.schemas import DOCUMENTS
from tests.project.docs.documents import ROOT
from tests.support import drill_reports
from tests.support.archives import T0, commit_point, deletions_of, group_at, make_archive, topic_state, write
from tests.support.flow_maps import flow_of
from tests.support.metadata_entities import acl
from tests.support.schemas import put_restored_schemas, schemas, version
from tests.support.target_topics import note_topics, target_topic

SPECIFICATION = (ROOT / "formats" / "archive.md").read_text("utf-8")
RESTORES = (ROOT / "formats" / "restores.md").read_text("utf-8")
MIRRORS = (ROOT / "formats" / "mirrors.md").read_text("utf-8")
NAMES = {
    "lock.json": "lock",
    "plan.json": "restore_plan",
    "report.json": "restore_report",
    "groups-before-1.json": "groups_before",
    "settings-before-1.json": "settings_before",
    "topics-1.json": "target_topics",
    "schemas-before.json": "schemas_before",
    "status.json": "flow_status",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An archive with every kind of file in it."""
    made = open_store(str(tmp_path_factory.mktemp("archive")))
    archive = make_archive(made)
    with HeldLease(made, "kbackup backup", 60):
        pass
    _write_restore(made, archive)
    _write_captures(made)
    store_report(made, drill_reports.report(comparison=drill_reports.comparison(ok=False)), "<!doctype html>")
    verified = verify(made, "all", True, no_session, Silent())
    record_verification(made, verified, "2026-01-03T00:00:00.000Z", partial=False)
    write_flow_map_part(made, folder("A", "B", 3), FlowMapPartName(1, "aa"), flow_runs_table({}), None)
    committed_at = datetime.fromisoformat(archive.restore_point("latest").committed_at)
    age = committed_at - datetime.fromtimestamp(T0 / 1000 + 8, UTC)
    expire(made, Expiry(Policy(), age, timedelta(0)), 60, Silent(), confirm=True)
    topics = archive.restore_point("latest").topics
    known = schemas(version("orders-value", 1, 7, guid=str(UUID(int=7))))
    deleted = deletions_of("orders", (17, 18), (20, 22))
    commit_point(archive, 3, topics=topics, schemas=known, deletions=deleted)
    pin(made, "latest")
    label(made, "latest", "before-migration")
    _write_flow(made, archive)
    return made


def no_session() -> NoReturn:
    raise AssertionError("Spark was asked for")


def _write_restore(made: Store, archive: Archive) -> None:
    """Write the plan and the report of a restore."""
    point = archive.restore_point("latest")
    content = content_of(archive, point, point.topics)
    names = {t.name: f"restored.{t.name}" for t in content.topics}
    plan = RestorePlan(
        restore_id="r1",
        archive_id=archive.info.id,
        restore_point=point.number,
        target_cluster_id="target",
        created_at="2026-01-03T00:00:00.000Z",
        transactions=True,
        transaction_bytes=1 << 25,
        into_existing=False,
        topics=tuple(plan_topic(t, names[t.name], {}, 1) for t in content.topics),
        units=make_units(content, names),
        groups=map_groups(content, names, Selection(), {}),
    )
    report = RestoreReport(
        status="restored",
        restore_id="r1",
        archive=made.url,
        restore_point=point.number,
        target_cluster_id="target",
        topics=tuple(
            RestoredTopic(source=t.source, target=t.target, partitions=t.partitions, records=t.records)
            for t in plan.topics
        ),
        records=plan.records,
        bytes=plan.bytes,
        groups=(),
        warnings=("grüße",),
        missing=(),
        seconds={"run": 1e-7, "connect": 12.5},
    )
    write_plan(made, plan)
    made.put(layout.restore_key("r1", layout.REPORT), dump(report))


def _write_captures(made: Store) -> None:
    """Write the groups and settings that a restore found before its changes."""
    had = GroupOffset(topic="restored.t", partition=0, offset=7, leader_epoch=1, metadata="m")
    gets = GroupOffset(topic="restored.t", partition=0, offset=9)
    journal = RestoreJournal(made, "r1")
    Captures(journal).write("apply", "target", groups=(GroupBefore(group="g", offsets=(had,), writes=(gets,)),))
    quota = QuotaChange(entity={"user": None}, name="producer_byte_rate", before=None, after=1.5)
    SettingsCaptures(journal).write("restore", "target", changes=Changes(quotas=(quota,)))
    archive_id = open_archive(made).info.id
    note_topics(
        made, "r1", [target_topic("t", source="t", target="restored.t")], cluster_id="target", archive_id=archive_id
    )
    put_restored_schemas(made, "r1")


def _write_flow(made: Store, archive: Archive) -> None:
    """Write the state and the status of a flow."""
    flow = FlowState(
        source="A",
        target="B",
        archive_id=archive.info.id,
        target_cluster_id="target",
        slots=32,
        created_at="2026-01-03T00:00:00.000Z",
    )
    made.put_new(layout.mirror_key("A", "B", "flow.json"), dump(flow))
    write_status(made, first_status(flow_of(), archive.info.id, None))


def json_files(store: Store) -> list[str]:
    return [entry.key for entry in store.list() if entry.key.endswith(".json")]


def schema_of(key: str) -> dict[str, Any]:
    file = key.rpartition("/")[2]
    if key.startswith(layout.DRILLS):
        file = "drill_report.json"
    if key.startswith(layout.VERIFICATIONS):
        file = "verification.json"
    if layout.parse_catalog_key(key) is not None:
        file = "catalog.json"
    if key.startswith(layout.RESTORES) and file == layout.SCHEMAS:
        file = "restored_schemas.json"
    name = NAMES.get(file, file.removesuffix(".json"))
    found: dict[str, Any] = json.loads((ROOT / "formats" / "schema" / f"{name}.schema.json").read_text("utf-8"))
    return found


def check_valid(key: str, data: bytes) -> None:
    schema = schema_of(key)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(data), schema, jsonschema.Draft202012Validator)


def published_checksum() -> Callable[[bytes], str]:
    """The function that the specification shows."""
    code = re.search(r"```python\n(.*?)```", SPECIFICATION, re.DOTALL)
    assert code is not None
    space: dict[str, Any] = {}
    exec(code[1], space)
    found: Callable[[bytes], str] = space["checksum"]
    return found


def test_there_is_a_file_of_every_schema(store: Store) -> None:
    known = {d.__name__ for name, d in DOCUMENTS.items() if not name.startswith("export")}
    assert {schema_of(key)["title"] for key in json_files(store)} == known


def test_files_beside_exports_are_valid() -> None:
    documents = {
        "export": ExportInfo(archive_id="id", kind="delta table", topics=("orders",)),
        "export_reached": Reached(archive_id="id", restore_point=3, topics=(), exclude_topics=()),
        "export_seen": Seen(archive_id="id", restore_point=3, manifest="sha256:" + 64 * "0"),
        "export_point": ExportedPoint(
            archive_id="id",
            restore_point=3,
            committed_at="2026-01-31T02:31:07.114Z",
            files=(ExportedFile(path="topic=orders/date=2026-01-31/1-000-0000000000.parquet", records=9, bytes=1),),
        ),
    }
    assert documents.keys() == {name for name in DOCUMENTS if name.startswith("export")}
    for name, document in documents.items():
        check_valid(f"{name}.json", dump(document))


def test_the_files_of_an_archive_match_their_published_schemas(store: Store) -> None:
    for key in json_files(store):
        check_valid(key, store.get(key))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("checksum"),
        lambda d: d.update(version=3),
        lambda d: d.update(format="other"),
        lambda d: d.update(unknown=1),
        lambda d: d["topics"][0].update(state="lost"),
    ],
)
def test_schemas_refuse(store: Store, change: Callable[[dict[str, Any]], object]) -> None:
    key = min(entry.key for entry in store.list(layout.POINTS) if entry.key.endswith(layout.MANIFEST))
    document = json.loads(store.get(key))
    change(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema_of(key), jsonschema.Draft202012Validator)


def test_files_have_the_checksum_that_the_document_describes(store: Store) -> None:
    checksum = published_checksum()
    for key in json_files(store):
        data = store.get(key)
        assert json.loads(data)["checksum"] == checksum(data), key
        assert list(json.loads(data))[:3] == ["format", "version", "checksum"]


def written_by_a_stranger(**members: object) -> bytes:
    """archive.json in another order, with other white space, escapes and numbers than ours."""
    text = json.dumps({"checksum": "", **members}, indent=4, ensure_ascii=True).encode()
    return text.replace(b'"checksum": ""', b'"checksum": "%s"' % published_checksum()(text).encode())


def test_a_strangers_file_is_read() -> None:
    data = written_by_a_stranger(id="0" * 32, version=2, created_at='a "checksum":"x" ü  \\', format="kbackup-archive")
    assert load(ArchiveInfo, data, "archive.json").created_at == 'a "checksum":"x" ü  \\'


def test_a_changed_file_is_refused() -> None:
    data = dump(ArchiveInfo(id="0" * 32, created_at="a b now"))
    for changed in (data.replace(b"a b", b"a  b"), data.replace(b"now", b"NOW")):
        assert published_checksum()(changed) != json.loads(data)["checksum"]
        with pytest.raises(CorruptError, match="does not match its own checksum"):
            load(ArchiveInfo, changed, "archive.json")


class LaterGroups(Groups, frozen=True, kw_only=True):
    """The model of groups.json in an imagined later version."""

    added: int = 7


def test_a_later_model_with_a_default_reads_older_files() -> None:
    data = dump(Groups(captured_at="then", groups=()))
    assert load(LaterGroups, data, "groups.json").added == 7


def test_every_key_is_in_the_layout(store: Store) -> None:
    tree = re.search(r"```\n(archive\.json.*?)```", SPECIFICATION, re.DOTALL)
    assert tree is not None
    names = [line.split()[0] for line in tree[1].splitlines()]
    patterns = [re.sub(r"<\w+>", "[^/@]+", re.escape(name)).replace("…", ".+") for name in names]
    for entry in store.list():
        assert any(re.fullmatch(pattern, entry.key) for pattern in patterns), entry.key
    constants = {layout.ARCHIVE, layout.LOCK, layout.TOPICS, layout.CATALOG, layout.TABLES, layout.POINTS}
    constants |= {layout.DERIVED, layout.RESTORES, layout.DRILLS, layout.VERIFICATIONS, layout.MIRRORS}
    constants |= {layout.SCRATCH, KEYS}
    assert {name.partition("/")[0] for name in names} == {constant.rstrip("/") for constant in constants}


def section(heading: str) -> str:
    return SPECIFICATION.partition(f"\n{heading}\n")[2].partition("\n#")[0]


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table below a heading; the first one is empty."""
    return [line.split("|") for line in section(heading).splitlines() if line.startswith("| `")]


def first_cells(heading: str) -> list[str]:
    """The names in the first column of the table below a heading, in order."""
    return [name for row in rows_of(heading) for name in re.findall(r"`([^`]+)`", row[1])]


def told_columns(start: str) -> list[str]:
    """The names in code of the sentence that begins with `start`."""
    text = SPECIFICATION.partition(start)[2]
    assert text, start
    return re.findall(r"`(\w+)`", re.split(r"\.\s", text)[0])


@pytest.mark.parametrize("name", ["points", "incarnations", "segments"])
def test_the_document_has_each_column_of_a_table(name: str) -> None:
    """In order, each with its type, and with what may be null."""
    schema = SCHEMAS[name]
    assert first_cells(f"### {name}") == schema.names
    for _, cell, kind, *_ in rows_of(f"### {name}"):
        fields = [schema.field(column) for column in re.findall(r"`([^`]+)`", cell)]
        texts = [f"{_type(field)}{', may be null' if field.nullable else ''}" for field in fields]
        types = kind.strip().split(", ") if "may be null" not in kind else [kind.strip()]
        assert texts == (types if len(types) == len(texts) else types * len(texts))


def _type(field: pa.Field[Any]) -> str:
    return "list of string" if field.name == "documents" else str(field.type)


@pytest.mark.parametrize("name", ["losses", "past", "log_starts", "history"])
def test_columns_of_small_tables(name: str) -> None:
    assert told_columns("A row a loss:" if name == "losses" else f"- `{name}`, a row") == SCHEMAS[name].names


def test_the_document_has_each_member_of_a_catalog(store: Store) -> None:
    members = [name for name in Catalog.__struct_fields__ if name not in ("format", "version", "checksum")]
    assert ["archive_id", *first_cells("## Catalogs")] == members
    row = next(row for row in rows_of("## Catalogs") if "`operation`" in row[1])
    assert {"kind", "token", "run", "by", "at"} <= set(re.findall(r"`(\w+)`", "|".join(row)))
    assert {*Operation.__struct_fields__} == {"kind", "token", "run", "by", "at", "summary"}
    keys = [e.key for e in store.list(layout.CATALOG) if layout.parse_catalog_key(e.key) is not None]
    newest = load(Catalog, store.get(max(keys)), "newest")
    assert newest.pins
    assert newest.labels
    assert newest.tables.log_starts


def test_the_document_has_each_member_of_a_topic() -> None:
    told = set(first_cells("### topics"))
    topic = {name for name in told if name in TopicState.__struct_fields__}
    assert topic == {*TopicState.__struct_fields__} - {"name"}
    of_partitions = {name.removeprefix("partitions[].") for name in told - topic}
    assert of_partitions == {*PartitionState.__struct_fields__} - {"partition"}


def _head(kind: type[msgspec.Struct]) -> tuple[str, str]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return str(defaults["format"]), str(defaults["version"])


def test_formats_and_schemas_are_told() -> None:
    """Every document's `format` stands in a table of formats/, beside its version and the name of its schema."""
    texts = [path.read_text("utf-8") for path in (ROOT / "formats").glob("*.md")]
    row = re.compile(r"^\| `.*` \| `(kbackup-\S+)` \| (\d+) \|(?: `(\w+)`)? \|$", re.MULTILINE)
    documents = {(*_head(kind), name) for name, kind in DOCUMENTS.items()}
    assert {told for text in texts for told in row.findall(text)} == {*documents, (*_head(KeyFile), "")}
    kinds = [kind for kind in Document.__subclasses__() if kind.__module__.startswith("kbackup.")]
    assert {_head(kind)[0] for kind in kinds} <= {name for name, *_ in documents}


def test_names_that_are_told() -> None:
    for name in (*offset_map.SCHEMA.names, layout.progress_group("<id>"), layout.OFFSETS):
        assert f"`{name}`" in RESTORES
    for name in ("previous", "cut", "key", "sum"):
        assert f"`kbackup.{name}`" in RESTORES
    for kind in get_args(get_type_hints(Loss)["kind"]):
        assert f"`{kind}`" in SPECIFICATION
    assert f"`{Manifest.__struct_defaults__[0]}`" in SPECIFICATION


READER = next(code for code in re.findall(r"```python\n(.*?)```", SPECIFICATION, re.DOTALL) if "def main(" in code)


def test_a_stranger_reads_restore_points_and_records(tmp_path: Path) -> None:
    assert "kbackup" not in READER
    folder = tmp_path / "archive"
    archive = make_archive(open_store(str(folder)))
    rows = {
        (partition, offset, f"key {offset % 3}", f"value {offset} of {partition} " * 6)
        for partition, offsets in ((0, [*range(10), 15, *range(17, 40)]), (1, [*range(12)]))
        for offset in offsets
    }
    points = [(p.number, p.committed_at, p.records) for p in archive.restore_points]
    assert points == [(1, "2026-01-01T00:00:00.000Z", 42), (2, "2026-01-02T00:00:00.000Z", 24)]
    assert strangers_view(tmp_path, folder, "orders") == (points, rows)


def test_a_stranger_reads_the_newest_incarnation(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    archive = make_archive(open_store(str(folder)))
    segments = write(archive.store, SegmentTarget("orders", 2, 0, 1000, "none"), range(3))
    orders = msgspec.structs.replace(topic_state("orders", [(0, 3, segments)], captured=3), id="another", incarnation=2)
    commit_point(archive, 3, topics=[orders], segments=segments, groups=[group_at("billing", ("orders", 0, 1))])
    points, rows = strangers_view(tmp_path, folder, "orders")
    assert [number for number, *_ in points] == [1, 2, 3]
    assert {(partition, offset) for partition, offset, *_ in rows} == {(0, 0), (0, 1), (0, 2)}


def strangers_view(
    tmp_path: Path, folder: Path, topic: str
) -> tuple[list[tuple[int, str, int]], set[tuple[int, int, str, str]]]:
    """The restore points and records that the published reader prints, run as a script of its own."""
    script = tmp_path / "reader.py"
    script.write_text(READER, encoding="utf-8")
    printed = subprocess.run(
        [sys.executable, "-P", str(script), str(folder), topic], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    points = [line.split() for line in printed if "b'" not in line]
    found = [re.fullmatch(r"(\d+) (\d+) b'(.*?)' b'(.*)'", line) for line in printed if "b'" in line]
    assert None not in found
    records = [(int(m[1]), int(m[2]), m[3], m[4]) for m in found if m is not None]
    assert records == sorted(records)
    assert len(set(records)) == len(records)
    return [(int(number), at, int(count)) for number, at, count in points], set(records)


def test_members_of_mirrors_are_documented() -> None:
    for name in FLOW_MAP.names:
        assert f"`{name}`" in MIRRORS
    assert f"`{layout.mirror_group('<source>', '<target>')}`".replace("%3C", "<").replace("%3E", ">") in MIRRORS
    assert layout.mirror_key("us.east", "B", "x") == "mirrors/us%2Eeast/B/x"
    assert f"makes a folded table when {FOLD} parts" in MIRRORS
    assert f"more than {EXACT + SLACK:,} runs" in MIRRORS
    assert f"the newest {EXACT:,} as they are" in MIRRORS
    assert f"at most 1/{SHARE} of" in MIRRORS
    assert "CRC-32(`<remote topic>/<partition>`) mod `slots`" in MIRRORS
    assert slot_of(TopicPartition("A.orders", 7), SLOTS) == zlib.crc32(b"A.orders/7") % SLOTS


def test_documents_with_the_archive_id_are_told() -> None:
    """Documents of the layout's first table hold the archive's id; checksums bind the others to it."""
    sentence = SPECIFICATION.partition("`archive.json` is created once. ")[2].partition(" have its `id`")[0]
    kinds = {"Catalogs": "catalog", "`latest.json`": "latest", "`derived.json`": "derived", "manifests": "manifest"}
    own = ("archive", "lock", *kinds.values(), "groups", "metadata")
    bound = {name for name in own if "archive_id" in DOCUMENTS[name].__struct_fields__}
    assert {kinds[word] for word in re.split(r",\s+|\s+and\s+", sentence)} == bound


OLDER = {*Document.__struct_fields__, "captured_at", "cluster_id", "brokers", "topics"}
FULL = Metadata(
    captured_at="2026-01-01T00:00:00.000Z",
    cluster_id="c",
    brokers=1,
    topics=(TopicMetadata(name="t", id="i", partitions=1, replication_factor=1, internal=False, configs={"a": "b"}),),
    acls=(acl("größe"),),
    scram_users=(ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096),),
    broker_configs=(BrokerConfig(broker=None, name="a", value="b"), BrokerConfig(broker=1, name="secret", value=None)),
    group_configs=(GroupConfig(group="g", name="a", value="b"),),
    not_carried=(NotCarried(part="client_quotas", what="client quotas", reason="not supported", why="so it is"),),
)


def test_the_schema_takes_it_and_it_comes_back() -> None:
    data = dump(FULL)
    check_valid("metadata.json", data)
    found = load(Metadata, data, "metadata.json")
    assert found.acls == FULL.acls
    assert found.broker_configs == FULL.broker_configs


def test_a_file_of_before_opens() -> None:
    older = json.loads(dump(FULL))
    for member in {*older} - OLDER:
        del older[member]
    older["checksum"] = ""
    bare = json.dumps(older, separators=(",", ":"), ensure_ascii=False).encode()
    text_sum = hashlib.sha256(bare).hexdigest()
    text = bare.replace(b'"checksum":""', f'"checksum":"sha256:{text_sum}"'.encode())
    found = load(Metadata, text, "metadata.json")
    assert (found.acls, found.scram_users, found.broker_configs, found.group_configs) == (None,) * 4
    assert found.topics == FULL.topics


def test_every_member_is_told() -> None:
    text = SPECIFICATION.partition("\n### groups.json, metadata.json\n")[2]
    told = re.findall(r"^\| `(\w+)` \|", text.partition("\n### ")[0], re.MULTILINE)
    assert {*told} == {*Metadata.__struct_fields__} - OLDER
    for reason in ("not there", "not supported", "denied", "failed"):
        assert f"`{reason}`" in text
