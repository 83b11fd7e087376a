"""The rights that `infra/docs/security.md` lists are enough, and each is needed: without it, kbackup says so."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kbackup.config.models import Restore
from kbackup.jobs.drill.job import DrillRequest, DrillTools
from kbackup.jobs.drill.job import drill as run_drill
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.types import CommittedOffset, TopicPartition
from scripts.dev.secured import Acl, SecuredBroker
from tests.integration.backed_up import commit
from tests.integration.conftest import Outcome
from tests.integration.secured import Command, command, fill, password
from tests.support.truth import assert_restored, group_names, positions, read_topic

DOCUMENT = Path(__file__).parents[2] / "infra/docs/security.md"
KINDS = {"--topic": "topic", "--group": "group", "--transactional-id": "transactional_id"}


class Right(NamedTuple):
    operation: str
    kind: str
    name: str
    prefixed: bool

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}"


def documented(user: str) -> list[Right]:
    """Return the rights that the `kafka-acls` lines of the document grant to `user`."""
    lines = [shlex.split(line) for line in DOCUMENT.read_text().splitlines() if line.startswith("kafka-acls")]
    return [right for line in lines if f"User:{user}" in line for right in _rights(line)]


def _rights(line: list[str]) -> Iterator[Right]:
    named = next((word for word in line if word in KINDS), None)
    kind = KINDS[named] if named is not None else "broker"
    name = line[line.index(named) + 1] if named is not None else "kafka-cluster"
    for word, operation in pairwise(line):
        if word == "--operation":
            snake = "".join(f"_{c}" if c.isupper() else c for c in operation).strip("_").lower()
            yield Right(snake, kind, name, "prefixed" in line)


@dataclass
class User:
    """A SCRAM user with the documented rights of some roles."""

    broker: SecuredBroker
    name: str
    roles: tuple[str, ...]
    password: str = field(default_factory=password)
    acls: dict[Right, Acl] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker.add_user(self.name, self.password)
        for right in (right for role in self.roles for right in documented(role)):
            self.acls[right] = self._allow(right)

    @property
    def properties(self) -> dict[str, str]:
        return self.broker.scram(self.name, self.password)

    @contextmanager
    def without(self, right: Right) -> Iterator[None]:
        self.broker.forbid([self.acls[right]])
        try:
            yield
        finally:
            self._allow(right)

    def _allow(self, right: Right) -> Acl:
        return self.broker.allow(self.name, right.operation, right.kind, right.name, right.prefixed)


@pytest.fixture(scope="module")
def reader(secured_broker: SecuredBroker) -> User:
    return User(secured_broker, f"backup-{secrets.token_hex(3)}", ("backup",))


@pytest.fixture(scope="module")
def writer(secured_broker: SecuredBroker) -> User:
    return User(secured_broker, f"restore-{secrets.token_hex(3)}", ("restore",))


@pytest.fixture(scope="module")
def driller(secured_broker: SecuredBroker) -> User:
    return User(secured_broker, f"drill-{secrets.token_hex(3)}", ("restore", "drill"))


@pytest.fixture(scope="module")
def topic(secured_broker: SecuredBroker) -> str:
    """With the group `shipping-<topic>` and the share group `sharing-<topic>` on its fifth record."""
    name = f"orders-{secrets.token_hex(4)}"
    fill(secured_broker, name)
    commit(secured_broker, f"shipping-{name}", name, {0: 5, 1: 5})
    groups, share = Cluster(secured_broker.client(), "source").groups, f"sharing-{name}"
    assert groups.commit_all({share: [CommittedOffset(TopicPartition(name, 0), 5, None, "")]}, {share}) == {share: ""}
    return name


@pytest.fixture(scope="module")
def kbackup(
    reader: User, writer: User, topic: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Command:
    """With one backup, by the reader."""
    made = command(spark, tmp_path_factory.mktemp("least"), reader.properties, writer.properties)
    made.must("backup", "-t", topic, "-g", f"/sh.*ing-{topic}/")
    return made


def test_a_backup_needs_no_more(kbackup: Command, topic: str) -> None:
    report = kbackup.must("backup", "-t", topic, "-g", f"/sh.*ing-{topic}/").document
    denied = [w for w in report["warnings"] if "may not" in w or "denied" in w]
    assert not denied, f"warnings of missing rights: {denied}"
    checked = kbackup.must("check", "-t", topic, "-g", f"shipping-{topic}").document
    failed = {step["name"]: step["detail"] for step in checked["steps"] if step["status"] != "ok"}
    assert not failed, f"steps that did not succeed: {failed}"


def test_a_restore_needs_no_more(kbackup: Command, secured_broker: SecuredBroker, topic: str) -> None:
    outcome = restore(kbackup, topic, "new.")
    assert outcome.code == 0, f"{outcome.err}\n{outcome.document}"
    assert [g["status"] for g in outcome.document["groups"]] == ["applied"] * 2
    restored = f"new.{topic}"
    assert_restored(read_topic(secured_broker.bootstrap, topic), read_topic(secured_broker.bootstrap, restored))
    stand = positions(secured_broker.bootstrap, f"new.shipping-{topic}")
    assert {tp: at.offset for tp, at in stand.items()} == {(restored, 0): 5, (restored, 1): 5}
    left = group_names(AdminClient(secured_broker.client(log_level=0)))
    assert not [name for name in left if name.startswith("kbackup-restore-")]
    checked = kbackup.must("check", "-t", topic, "--target").document
    failed = {step["name"]: step["detail"] for step in checked["steps"] if step["status"] != "ok"}
    assert not failed, f"steps that did not succeed: {failed}"


def restore(kbackup: Command, topic: str, prefix: str) -> Outcome:
    renamed = (f"--map-group={group}={prefix}{group}" for group in (f"shipping-{topic}", f"sharing-{topic}"))
    return kbackup("restore", kbackup.archive, "--map-regex", f"^={prefix}", *renamed)


LACKED_BY_A_BACKUP = [
    (Right("read", "topic", "*", False), "source: topics", "none of 0 selected"),
    (Right("describe_configs", "topic", "*", False), "source: configs", "DescribeConfigs on the topic"),
    (Right("describe", "group", "*", False), "source: groups", "Describe on the group"),
    (Right("describe_configs", "group", "*", False), "source: settings", "group configs: "),
    (Right("describe", "broker", "kafka-cluster", False), "source: settings", "ACLs: "),
    (Right("describe_configs", "broker", "kafka-cluster", False), "source: settings", "broker configs"),
]


@pytest.mark.parametrize(("missing", "step", "message"), LACKED_BY_A_BACKUP, ids=str)
def test_check_names_the_right_that_a_backup_lacks(
    missing: Right, step: str, message: str, reader: User, kbackup: Command, topic: str
) -> None:
    with reader.without(missing):
        outcome = kbackup("check", "-t", topic, "-g", f"shipping-{topic}")
    (told,) = [made for made in outcome.document["steps"] if made["name"] == step]
    assert told["status"] in ("failed", "warning")
    assert message in told["detail"]
    assert told["hint"]


LACKED_BY_A_RESTORE = [
    (Right("create", "topic", "*", False), 1, "Create on the cluster, or on topics of that name"),
    (Right("write", "topic", "*", False), 14, "Write on the topic"),
    (Right("read", "topic", "*", False), 14, "Read on the topic"),
    (Right("describe_configs", "topic", "*", False), 14, "DescribeConfigs on the topic"),
    (Right("read", "group", "*", False), 14, "Read on groups that begin with kbackup-"),
    (Right("delete", "group", "kbackup-restore-", True), 0, "Delete on the group"),
    (Right("write", "transactional_id", "kbackup-", True), 14, "Write on transactional ids"),
    (Right("describe_configs", "broker", "kafka-cluster", False), 14, "DescribeConfigs on the cluster"),
]


@pytest.mark.parametrize(("missing", "code", "message"), LACKED_BY_A_RESTORE, ids=str)
def test_a_restore_names_the_right_that_it_lacks(
    missing: Right, code: int, message: str, writer: User, kbackup: Command, topic: str
) -> None:
    prefix = f"{secrets.token_hex(3)}."
    if (missing.operation, missing.kind) == ("describe_configs", "topic"):
        writer.broker.create_topic(prefix + topic, 2)  # those of a topic that is there are looked at
    with writer.without(missing):
        outcome = restore(kbackup, topic, prefix)
    assert outcome.code == code, f"{outcome.err}\n{outcome.document}"
    assert message in str(outcome.document)
    assert "Traceback" not in outcome.err


def drill(kbackup: Command, driller: User) -> Outcome:
    user = [f"--set=target.{name}={value}" for name, value in driller.properties.items() if "password" not in name]
    (kbackup.folder / "password.secret").write_text(driller.password)
    user.append(f"--set=target.sasl.password=${{file:{kbackup.folder}/password.secret}}")
    return kbackup("drill", kbackup.archive, "--on-source", *user)


def test_a_drill_needs_no_more(kbackup: Command, driller: User) -> None:
    outcome = drill(kbackup, driller)
    assert outcome.code == 0, f"{outcome.err}\n{outcome.document}"
    admin = AdminClient(driller.broker.client(log_level=0))
    assert not [name for name in admin.list_topics(timeout=30).topics if name.startswith("drill-")]
    assert not [name for name in group_names(admin) if name.startswith("drill-")]


LACKED_BY_A_DRILL = [
    (Right("delete", "topic", "drill-", True), "Delete on the topic"),
    (Right("delete", "group", "drill-", True), "Delete on the group"),
]


@pytest.mark.parametrize(("missing", "message"), LACKED_BY_A_DRILL, ids=str)
def test_a_drill_names_what_it_could_not_remove(
    missing: Right, message: str, driller: User, kbackup: Command, spark: SparkSession
) -> None:
    store = open_store(kbackup.archive)
    wanted = DrillRequest(RestoreRequest.of(Restore()), on_source=True)
    impatient = DrillTools(deletion_seconds=3)
    published: list[DrillReport] = []
    with driller.without(missing):
        report = run_drill(
            wanted, driller.properties, store, store, lambda: spark, Silent(), published.append, impatient
        )
    assert report.result == "failed"
    assert any(message in name for name in report.left), report.left


def test_every_documented_right_is_tried() -> None:
    assert Right("describe_configs", "broker", "kafka-cluster", False) in documented("backup")
    assert Right("delete", "group", "kbackup-restore-", True) in documented("restore")
    assert {right.operation for right in documented("backup")} == {"read", "describe", "describe_configs"}
    assert {right for right, *_ in LACKED_BY_A_BACKUP} == set(documented("backup"))
    assert {right for right, *_ in LACKED_BY_A_RESTORE} == set(documented("restore"))
    assert {right for right, *_ in LACKED_BY_A_DRILL} == set(documented("drill"))
