"""ACLs, users and dynamic configs: captured, set on another cluster, and compared; on brokers with an authorizer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.metadata.entities import Acl
from kbackup.store import open_store
from scripts.dev import cache, classes
from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import SMALL, Broker
from scripts.dev.process import HANG
from scripts.dev.secured import SecuredBroker
from tests.integration.backed_up import commit
from tests.integration.conftest import CountedSpark, Kbackup
from tests.integration.guide import run_guide
from tests.integration.secured import GUARDED, section
from tests.integration.topics import produce

NEVER = {"secrets of SCRAM users"}
NOT_HERE = {"delegation tokens"}
"""By a listener without login."""
GROUP = "billing"
ACLS = [
    AclBinding("topic", "orders", "literal", "User:alice", "*", "read", "allow"),
    AclBinding("topic", "orders", "literal", "User:mallory", "*", "write", "deny"),
    AclBinding("topic", "clicks", "literal", "User:alice", "*", "read", "allow"),
    AclBinding("topic", "future", "literal", "User:alice", "10.0.0.1", "describe", "allow"),
    AclBinding("topic", "ord", "prefixed", "User:bob", "*", "all", "allow"),
    AclBinding("group", "*", "literal", "User:bob", "*", "read", "allow"),
    AclBinding("group", GROUP, "literal", "User:größe; x", "*", "read", "allow"),
    AclBinding("transactional_id", "tx-", "prefixed", "User:bob", "*", "idempotent_write", "allow"),
    AclBinding("broker", "kafka-cluster", "literal", "User:bob", "*", "alter_configs", "allow"),
]


@dataclass
class Clusters:
    """Two clusters, an archive of the first in which everything is captured, and the command line for them."""

    source: SecuredBroker
    target: Broker
    kbackup: Kbackup
    archive: str

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.kbackup.run(*arguments, code=code)

    def backup(self) -> Metadata:
        number = self.run("backup", "-a", self.archive)["restore_point"]
        return self.metadata(number)

    def metadata(self, number: int) -> Metadata:
        archive = open_archive(open_store(self.archive, {}))
        return archive.metadata(archive.restore_point(number))

    def diff(self, a: str, b: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The parts of a diff that are not empty."""
        found = self.run("diff", a, b, "-a", self.archive, *arguments, code=code)
        assert {*found["not_compared"]} - {"topic ids"} == NOT_HERE
        del found["not_compared"]
        return {name: part for name, part in found.items() if part and name not in ("a", "b", "same", "exit_code")}


@pytest.fixture(scope="module")
def clusters(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with SecuredBroker() as source, Broker(GUARDED) as target:
        folder = tmp_path_factory.mktemp("settings")
        config = folder / "kbackup.toml"
        config.write_text(
            f'[source]\n"bootstrap.servers" = "{source.bootstrap}"\n'
            f'[target]\n"bootstrap.servers" = "{target.bootstrap}"\n'
        )
        _furnish(source)
        made = Clusters(source, target, Kbackup(CountedSpark(spark), config), str(folder / "archive"))
        made.backup()
        yield made


def _furnish(broker: Broker) -> None:
    for topic in ("orders", "clicks"):
        broker.create_topic(topic, 2)
        produce(broker, topic, 0, [b"1", b"2", b"3"])
    commit(broker, GROUP, "orders", {0: 2})
    _make_acls(broker, ACLS)
    _make_user(broker, "alice", ScramMechanism.SCRAM_SHA_512, 8192)
    _make_user(broker, "b b'", ScramMechanism.SCRAM_SHA_256, 4096)
    _set(broker, ConfigResource(ResourceType.BROKER, "1"), "log.cleaner.threads", "2")
    password = "listener.name.client.ssl.keystore.password"
    _set(broker, ConfigResource(ResourceType.BROKER, "1"), password, "not-to-be-seen")
    _set(broker, ConfigResource(ResourceType.GROUP, GROUP), "consumer.session.timeout.ms", "50000")
    _kafka_configs(broker, "--alter", "--entity-type brokers --entity-default --add-config log.segment.bytes=2097152")


def _all(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(30)


def _make_acls(broker: Broker, acls: list[AclBinding]) -> None:
    admin = AdminClient(broker.client())
    _all(admin.create_acls(acls))


def _make_user(broker: Broker, name: str, mechanism: ScramMechanism, iterations: int) -> None:
    credential = ScramCredentialInfo(mechanism, iterations)
    upsertion = UserScramCredentialUpsertion(name, credential, b"a password of the tests")
    admin = AdminClient(broker.client())
    _all(admin.alter_user_scram_credentials([upsertion]))


def _set(broker: Broker, resource: ConfigResource, name: str, value: str) -> None:
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient(broker.client())
    _all(admin.incremental_alter_configs([resource]))


def _kafka_configs(broker: Broker, *arguments: str) -> None:
    """Run kafka-configs.sh."""
    words = [word for text in arguments for word in shlex.split(text)]
    argv = [*classes.java(kafka_jars()), *SMALL, "org.apache.kafka.tools.ConfigCommand"]
    if "--bootstrap-server" not in words:
        words = ["--bootstrap-server", broker.bootstrap, *words]
    cache.run([*argv, *words], "kafka-configs", "look at the arguments", seconds=HANG)


def acls_of(broker: Broker) -> set[Acl]:
    anything: list[Any] = ["any", None, "any", None, None, "any", "any"]
    every = AclBindingFilter(*anything)
    admin = AdminClient(broker.client())  # for as long as somebody waits
    return {as_archived(b) for b in admin.describe_acls(every).result(30)}


def as_archived(binding: AclBinding) -> Acl:
    def word(kind: Any) -> str:
        return str(kind.name).lower()

    return Acl(
        resource=word(binding.restype).replace("broker", "cluster"),
        name=binding.name,
        pattern=word(binding.resource_pattern_type),
        principal=binding.principal,
        host=binding.host,
        operation=word(binding.operation),
        permission=word(binding.permission_type),
    )


def test_a_backup_captures_acls_users_quotas_and_configs(clusters: Clusters) -> None:
    captured = clusters.metadata(1)
    assert {*(captured.acls or ())} == {as_archived(b) for b in ACLS}
    assert [(u.user, u.mechanism, u.iterations) for u in captured.scram_users or ()] == [
        ("alice", "SCRAM-SHA-512", 8192),
        ("b b'", "SCRAM-SHA-256", 4096),
    ]
    assert [(c.broker, c.name, c.value) for c in captured.broker_configs or ()] == [
        (None, "log.segment.bytes", "2097152"),
        (None, "min.insync.replicas", "1"),  # the controller's own, since eligible leader replicas
        (1, "listener.name.client.ssl.keystore.password", None),
        (1, "log.cleaner.threads", "2"),
    ]
    group_configs = [(c.group, c.name, c.value) for c in captured.group_configs or ()]
    assert group_configs == [(GROUP, "consumer.session.timeout.ms", "50000")]
    assert {n.what for n in captured.not_carried} == NEVER | NOT_HERE
    stored = Path(clusters.archive, "backups").rglob("*")
    assert not any(b"not-to-be-seen" in file.read_bytes() for file in stored if file.is_file())


def test_a_cluster_is_like_its_restore_point(clusters: Clusters) -> None:
    assert clusters.diff("latest", "source", "--exit-code") == {}


@pytest.fixture(scope="module")
def dry(clusters: Clusters) -> dict[str, Any]:
    return clusters.run("restore", clusters.archive, *ARGUMENTS, "--dry-run")


ARGUMENTS = ("--topic=orders", "--map=orders=back", f"--map-group={GROUP}=drill", "--with", "acls,configs,users")


def test_a_dry_run_shows_and_sets_nothing(clusters: Clusters, dry: dict[str, Any]) -> None:
    planned = dry["settings"]
    assert len(planned["acls"]) == len(ACLS) - 1  # clicks is not restored
    assert planned["acls"][0]["permission"] == "deny"
    assert {(c["owner"], c["name"], c["before"], c["after"]) for c in planned["configs"]} == {
        ("", "log.segment.bytes", None, "2097152"),
        ("1", "log.cleaner.threads", None, "2"),
        ("drill", "consumer.session.timeout.ms", None, "50000"),
    }
    assert len(planned["missing"]) == 2
    assert {left["what"] for left in planned["not_carried"]} == NEVER | NOT_HERE | {
        "ACL: allow read for User:alice from * on topic clicks (literal)",
        "config listener.name.client.ssl.keystore.password of broker 1",
    }
    assert acls_of(clusters.target) == set()


def test_settings_are_set_before_the_diff_is_empty(clusters: Clusters, dry: dict[str, Any]) -> None:
    report = clusters.run("restore", clusters.archive, *ARGUMENTS, "--restore-id=with", code=3)
    assert report["settings"]["acls"] == dry["settings"]["acls"]
    assert report["missing"] == dry["settings"]["missing"]
    names = {("topic", "orders", "literal"): "back", ("group", GROUP, "literal"): "drill"}
    wanted = [as_archived(b) for b in ACLS if b.name != "clicks"]
    assert acls_of(clusters.target) == {
        msgspec.structs.replace(a, name=names.get((a.resource, a.name, a.pattern), a.name)) for a in wanted
    }
    for told in report["missing"]:
        command = re.search(r"kafka-configs\.sh (.*)", told)
        assert command is not None
        _kafka_configs(clusters.target, command[1].replace("...", "a-new-secret"))
    again = clusters.run("restore", clusters.archive, *ARGUMENTS, "--into-existing", "--dry-run")
    planned = again["settings"]
    assert (planned["acls"], planned["configs"], planned["missing"]) == ([], [], [])
    # what stands on the target now, against what was captured
    found = clusters.diff("1", "target", "--topic=orders", "--topic=back")
    assert "users" not in found
    found_configs = {(v["owner"], v["name"], v["change"]) for v in found["broker_configs"]}
    assert found_configs == {("broker 1", "listener.name.client.ssl.keystore.password", "gone")}


def test_a_diff_says_exactly_what_was_changed(clusters: Clusters) -> None:
    source = clusters.source
    produce(source, "orders", 1, [b"4", b"5"])
    commit(source, GROUP, "orders", {0: 3})
    source.create_topic("new", 1, config={"retention.ms": "1000"})
    _set(source, ConfigResource(ResourceType.TOPIC, "clicks"), "retention.ms", "9000000000000")
    _set(source, ConfigResource(ResourceType.BROKER, "1"), "log.cleaner.threads", "3")
    _make_user(source, "carol", ScramMechanism.SCRAM_SHA_256, 4096)
    late = AclBinding("topic", "new", "literal", "User:carol", "*", "read", "allow")
    _make_acls(source, [late])
    diff = clusters.diff("1", "source", "--exit-code", code=3)
    assert [(t["topic"], t["change"]) for t in diff.pop("topics")] == [("clicks", "changed"), ("new", "appeared")]
    moved = {"topic": "orders", "partition": 0, "before": 2, "after": 3}
    assert diff == {
        "offsets": [{"topic": "orders", "partition": 1, "start": [0, 0], "end": [0, 2], "added": 2}],
        "groups": [{"group": GROUP, "change": "changed", "moved": [moved]}],
        "acls": [{"change": "appeared", "acl": msgspec.structs.asdict(as_archived(late))}],
        "users": [_value("carol", "SCRAM-SHA-256", "appeared", None, "4096 iterations")],
        "broker_configs": [_value("broker 1", "log.cleaner.threads", "changed", "2", "3")],
    }
    clusters.backup()
    assert clusters.diff("2", "source") == {}
    assert {name: part for name, part in clusters.diff("1", "2").items() if name != "topics"} == diff


def _value(owner: str, name: str, change: str, before: str | None, after: str | None) -> dict[str, Any]:
    return {"owner": owner, "name": name, "change": change, "before": before, "after": after}


def test_backup_succeeds_without_settings_that_it_may_not_describe(clusters: Clusters, tmp_path: Path) -> None:
    source, archive = clusters.source, str(tmp_path / "archive")
    source.add_user("watcher", "a password of the tests")
    for operation in ("read", "describe_configs"):
        source.allow("watcher", operation, "topic", "*")
    source.allow("watcher", "describe", "group", "*")
    watcher = tmp_path / "kbackup.toml"
    properties = source.scram("watcher", "a password of the tests")
    watcher.write_text(section("source", properties))
    kbackup = Kbackup(clusters.kbackup.spark, watcher)
    outcome = kbackup("backup", "-a", archive, "--topic", "orders")
    assert outcome.code == 0, outcome.err
    assert outcome.document["totals"]["records"] == 5
    assert outcome.document["warnings"] == [
        "not in this restore point, since its user may not describe them: ACLs, SCRAM users, broker configs, "
        "group configs, client quotas, client metrics; to see which rights it lacks: kbackup check"
    ]
    opened = open_archive(open_store(archive, {}))
    found = opened.metadata(opened.restore_point(1))
    assert (found.client_quotas, found.client_metrics, bool(found.features)) == (None, None, True)
    diff = kbackup("diff", "1", "source", "-a", archive, "--topic", "orders").document
    settings = ("ACLs", "SCRAM users", "broker configs", "group configs", "client quotas", "client metrics")
    assert {*diff["not_compared"]} == {*settings}
    assert "it takes Describe on the cluster" in diff["not_compared"]["ACLs"]
    refused = clusters.run("restore", archive, "--map=orders=again", "--with=acls", code=1)
    assert "restore point 1 does not tell its ACLs" in refused["error"]["message"]


def test_a_cluster_without_authorizer_is_no_reason_to_warn(
    clusters: Clusters, kbackup: Kbackup, broker: Broker, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name)
    archive = str(tmp_path / "archive")
    report = kbackup("backup", "-a", archive, "--topic", topic_name)
    assert (report.code, report.document["warnings"]) == (0, [])
    opened = open_archive(open_store(archive, {}))
    found = opened.metadata(opened.restore_point(1))
    assert found.acls == ()
    assert [n.reason for n in found.not_carried if n.what == "ACLs"] == ["not there"]


def test_acls_for_a_cluster_without_authorizer_are_refused_behind_the_plan(clusters: Clusters, broker: Broker) -> None:
    into = ("--restore-point", "1", "--map-regex=^=refused.", "--bootstrap-server", broker.bootstrap)
    acls = len(clusters.metadata(1).acls or ())
    for run in ("--dry-run", "--restore-id=refused"):
        refused = clusters.kbackup("restore", clusters.archive, "--with", "acls,quotas", *into, run)
        assert refused.code == 1
        error = refused.document["error"]
        assert (
            f"has no authorizer, so it takes no ACLs: {acls} ACLs of restore point 1 can't be set" in error["message"]
        )
        assert error["hint"].startswith("to restore without them, give --with quotas")
        assert "restore point 1 into cluster" in refused.err, "the plan comes first"
    planned = clusters.run("restore", clusters.archive, "--with", "quotas", *into, "--dry-run")
    assert planned["records"] == 6


def test_the_guide_asks_whether_to_go_on_without_acls(clusters: Clusters, broker: Broker, tmp_path: Path) -> None:
    answers = f'case = "cluster-gone"\nservers = "{broker.bootstrap}"\nbackup = false\n'
    unanswered = run_guide(clusters.kbackup.config, clusters.archive, tmp_path, answers)
    assert unanswered.code == 2
    assert "has no answer to: The new cluster has no authorizer and takes none of the" in unanswered.err
    refused = run_guide(clusters.kbackup.config, clusters.archive, tmp_path, f"{answers}without_acls = false")
    assert refused.code == 1
    assert "set authorizer.class.name on its brokers" in refused.err
    gone_on = run_guide(clusters.kbackup.config, clusters.archive, tmp_path, f"{answers}without_acls = true")
    assert f"kbackup restore --bootstrap-server {broker.bootstrap} --with configs,quotas" in gone_on.out
