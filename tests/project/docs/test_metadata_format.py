"""metadata.json, with everything in it, against its schema and what formats/archive.md says of it."""

from __future__ import annotations

import hashlib
import json
import re

import jsonschema

from kbackup.archive.models import Document, Metadata, dump, load
from kbackup.metadata.entities import Acl, BrokerConfig, GroupConfig, NotCarried, ScramUser, TopicMetadata
from tests.project.docs.documents import ROOT

OLDER = {*Document.__struct_fields__, "captured_at", "cluster_id", "brokers", "topics"}
FULL = Metadata(
    captured_at="2026-01-01T00:00:00.000Z",
    cluster_id="c",
    brokers=1,
    topics=(
        TopicMetadata(
            name="t", id="i", partitions=1, replication_factor=1, internal=False, configs={"a": "b"}
        ),
    ),
    acls=(
        Acl(
            resource="topic",
            name="größe",
            pattern="literal",
            principal="User:a",
            host="*",
            operation="read",
            permission="allow",
        ),
    ),
    scram_users=(ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096),),
    broker_configs=(
        BrokerConfig(broker=None, name="a", value="b"),
        BrokerConfig(broker=1, name="secret", value=None),
    ),
    group_configs=(GroupConfig(group="g", name="a", value="b"),),
    not_carried=(
        NotCarried(part="client_quotas", what="client quotas", reason="not supported", why="so it is"),
    ),
)


def test_the_schema_takes_it_and_it_comes_back() -> None:
    schema = json.loads((ROOT / "formats/schema/metadata.schema.json").read_text("utf-8"))
    data = dump(FULL)
    jsonschema.validate(json.loads(data), schema, jsonschema.Draft202012Validator)
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
    text = (ROOT / "formats/archive.md").read_text("utf-8").partition("\n### groups.json, metadata.json\n")[2]
    told = re.findall(r"^\| `(\w+)` \|", text.partition("\n## ")[0], re.MULTILINE)
    assert {*told} == {*Metadata.__struct_fields__} - OLDER
    for reason in ("not there", "not supported", "denied", "failed"):
        assert f"`{reason}`" in text
