"""Records with schemas, backed up and restored: the deserializers of Java and Python read every one of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.kafka.schema_registry import SchemaRegistry
from kbackup.schemas.base import RegistryOptions, SchemaReference
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from scripts.dev.registry import Apicurio
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.schema_archive import CART, EVENT, MONEY, SchemaArchive, schema_version
from tests.support.schema_samples import Rows, formats, java_read, produce_samples, python_read, register, rows_of
from tests.support.truth import read_topic


@pytest.fixture(scope="module")
def other() -> Iterator[Apicurio]:
    """A registry that has other schemas, with the ids of ours."""
    with Apicurio() as running:
        register(running.url, "theirs-")
        yield running


def test_restored_records_are_read(
    broker: Broker,
    apicurio: Apicurio,
    other: Apicurio,
    archive: Archive,
    kbackup: Kbackup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefix = f"s{secrets.token_hex(4)}-"
    expected = rows_of(produce_samples(broker.bootstrap, apicurio, prefix, java=True))
    kinds_of = formats(prefix)
    monkeypatch.setenv("KBACKUP_SCHEMA_REGISTRY_URL", apicurio.url)
    report = kbackup.run("backup", "--archive", archive.url, "--topic", f"/{prefix}.*/")
    assert report["warnings"] == []

    def restored(target: Apicurio, mode: str) -> tuple[dict[str, tuple[str, str]], Rows]:
        """Return the formats and the due records of the topics of a restore."""
        names = {topic: f"{mode}-{topic}" for topic in kinds_of}
        flags = ("--target-schema-registry", target.url, "--schemas", mode, "--map-regex", f"^={mode}-")
        kbackup.run("restore", archive.url, *flags, "--restore-id", f"{mode}-{prefix}")
        compared = kbackup.run("verify", archive.url, "--against", "target", "--restore-id", f"{mode}-{prefix}")
        assert compared["findings"] == []
        return {names[t]: kinds for t, kinds in kinds_of.items()}, {names[t]: rows for t, rows in expected.items()}

    for target, mode in ((apicurio, "same"), (other, "map")):
        kinds, due = restored(target, mode)
        assert java_read(broker.bootstrap, target, kinds) == due
        assert python_read(broker.bootstrap, target.url, kinds) == due


def test_records_with_the_offsets_of_the_source_get_the_ids_of_the_target(
    broker: Broker,
    apicurio: Apicurio,
    other: Apicurio,
    archive: Archive,
    kbackup: Kbackup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefix = f"s{secrets.token_hex(4)}-"
    topic, target = f"{prefix}avro", f"same-{prefix}avro"
    written = rows_of(produce_samples(broker.bootstrap, apicurio, prefix))[topic]
    topics.delete_records(broker, topic, {0: 1})
    monkeypatch.setenv("KBACKUP_SCHEMA_REGISTRY_URL", apicurio.url)
    kbackup.run("backup", "--archive", archive.url, "--topic", topic)
    flags = ("--target-schema-registry", other.url, "--schemas", "map", "--map", f"{topic}={target}")
    kbackup.run("restore", archive.url, "--same-offsets", *flags, "--restore-id", target)
    compared = kbackup.run("verify", archive.url, "--against", "target", "--restore-id", target)
    assert compared["findings"] == []
    due = [row for row in written if (row["partition"], row["offset"]) != (0, 0)]
    assert python_read(broker.bootstrap, other.url, {target: formats(prefix)[topic]}) == {target: due}


def test_a_registry_that_gives_ids_of_its_own_is_told_to_be_one(
    broker: Broker,
    apicurio: Apicurio,
    other: Apicurio,
    archive: Archive,
    kbackup: Kbackup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefix = f"s{secrets.token_hex(4)}-"
    produce_samples(broker.bootstrap, apicurio, prefix)
    monkeypatch.setenv("KBACKUP_SCHEMA_REGISTRY_URL", apicurio.url)
    kbackup.run("backup", "--archive", archive.url, "--topic", f"{prefix}avro")
    flags = ("--target-schema-registry", other.url, "--map-regex", "^=back-", "--schemas", "same")
    refused = kbackup("restore", archive.url, *flags)
    assert refused.code == 1, refused
    assert "--schemas map" in refused.err


@pytest.mark.parametrize("form", ["contentId", "globalId", "eightBytes"])
def test_ids_of_apicurios_own_forms_are_named_as_not_mapped(
    form: str,
    broker: Broker,
    apicurio: Apicurio,
    other: Apicurio,
    archive: Archive,
    kbackup: Kbackup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefix = f"s{secrets.token_hex(4)}-"
    written = produce_samples(broker.bootstrap, apicurio, prefix, java=True, form=form)
    kinds = formats(prefix)
    due = {(topic, "keys") for topic, (of_keys, _) in kinds.items() if of_keys != "STRING"}
    due |= {(topic, "values") for topic in kinds}

    def named(warnings: list[str]) -> set[tuple[str, str]]:
        words = [warning.split() for warning in warnings if "a form of Apicurio's own" in warning]
        return {(topic, part) for part, _, topic, *_ in words}

    monkeypatch.setenv("KBACKUP_SCHEMA_REGISTRY_URL", apicurio.url)
    report = kbackup.run("backup", "--archive", archive.url, "--topic", f"/{prefix}.*/")
    assert named(report["warnings"]) == due
    shown = kbackup.run("schemas", "show", "--archive", archive.url)
    assert named(shown["uncovered"]) == due
    kept = {each["subject"] for each in shown["subjects"]}
    assert {part.subject for sample in written for part in sample[2:] if part and part.subject} <= kept
    assert f"{prefix}proto/money.proto" in kept, "what they refer to"
    flags = ("--target-schema-registry", other.url, "--schemas", "map", "--map-regex", f"^={form}-")
    planned = kbackup.run("restore", archive.url, *flags, "--dry-run", code=3)
    assert named(planned["warnings"]) == due
    restored = kbackup.run("restore", archive.url, *flags, "--restore-id", prefix, code=3)
    assert named(restored["missing"]) == due
    for topic in kinds:
        assert read_topic(broker.bootstrap, f"{form}-{topic}") == read_topic(broker.bootstrap, topic)


def test_mirrored_records_are_read(
    broker: Broker, apicurio: Apicurio, other: Apicurio, archive: Archive, kbackup: Kbackup, tmp_path: Path
) -> None:
    prefix = f"s{secrets.token_hex(4)}-"
    expected = rows_of(produce_samples(broker.bootstrap, apicurio, prefix))
    registries = {"A": apicurio.url, "B": other.url}
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = A, B\nA->B.enabled = true\nemit.checkpoints.enabled = false\n"
        f"topics = {prefix}.*\nreplication.factor = 1\nheartbeats.topic.replication.factor = 1\n"
        f"emit.offset-syncs.enabled = false\nkbackup.schemas = map\nkbackup.archive = {archive.url}\n"
        + "".join(f"{alias}.bootstrap.servers = {broker.bootstrap}\n" for alias in registries)
        + "".join(f"{alias}.kbackup.registry.url = {url}\n" for alias, url in registries.items())
    )
    for written in (expected, rows_of(produce_samples(broker.bootstrap, apicurio, f"{prefix}more-"))):
        kbackup.run("mirror", "run", str(file), "--once")
        due = {f"A.{topic}": rows for topic, rows in written.items()}
        kinds = formats(f"A.{prefix}" if written is expected else f"A.{prefix}more-")
        assert java_read(broker.bootstrap, other, kinds) == due
    # the first bytes of a heartbeat's value are those of schema 1
    beats, written_beats = (
        {(r.key, r.value) for records in read_topic(broker.bootstrap, topic).values() for r in records}
        for topic in ("A.heartbeats", "heartbeats")
    )
    assert beats
    assert beats <= written_beats


def test_schemas_are_restored_without_records(other: Apicurio, kbackup: Kbackup, tmp_path: Path) -> None:
    """Apicurio takes mode IMPORT and keeps no id: what was written by then is deleted again."""
    needs = (SchemaReference(name="money.proto", subject="wide-money", version=7),)
    money = schema_version("wide-money", 7, 4660, MONEY, "PROTOBUF", state="deleted")
    cart = schema_version("wide-carts", 1, 4661, CART, "PROTOBUF", references=needs)
    events = schema_version("wide-events", 1, 4662, EVENT, "JSON", state="deleted")
    later = schema_version("wide-events", 2, 4663, {**EVENT, "title": "later"}, "JSON")
    SchemaArchive(open_store(str(tmp_path))).night({}, (money, cart, events, later))
    registry = SchemaRegistry(RegistryOptions(url=other.url))
    flags = ("--archive", str(tmp_path), "--target-schema-registry", other.url)
    before = registry.subjects()
    refused = kbackup("schemas", "restore", *flags)
    assert (refused.code, "wide-money version 7 with id 4660 got id" in refused.err) == (1, True), refused
    assert registry.subjects() == before
    done = kbackup.run("schemas", "restore", *flags, "--schemas", "map", code=3)
    assert registry.subjects() == sorted([*before, "wide-carts", "wide-events", "wide-money"])
    assert (registry.versions("wide-events"), registry.versions("wide-events", deleted=True)) == ([2], [1, 2])
    assert done["ids"].keys() == {"4660", "4661", "4662", "4663"}
    (refused_deletion,) = done["not_set"]
    assert refused_deletion.startswith("wide-money version 1 is not deleted again: ")
    undone = kbackup.run(
        "schemas", "undo", "--confirm", "--accept-unproven", *flags, "--restore-id", done["restore_id"]
    )
    assert {(name.split()[0]) for name in undone["deleted"]} == {"wide-carts", "wide-events", "wide-money"}
    assert (len(undone["deleted"]), undone["left"]) == (4, [])
    assert registry.subjects() == before
