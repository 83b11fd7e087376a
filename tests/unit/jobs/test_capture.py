"""A restore point records the settings that a cluster reports, and those that it withholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbackup.archive.models import Metadata
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs import capture
from kbackup.jobs.capture import NEVER, read_brokers, settings_warnings, topics_with_leaders
from kbackup.jobs.metadata import merge
from kbackup.jobs.settings.documents import SettingsCaptures
from kbackup.jobs.settings.plan import ConfigChange, QuotaChange, SettingsReport
from kbackup.jobs.settings.write import apply_settings, compare_settings
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import Acl, BrokerConfig, ClientQuota, GroupConfig, QuotaKey, ScramUser
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import make_archive, restore_plan
from tests.support.memory_store import MemoryStore
from tests.support.metadata_entities import acl

READ = acl()


@dataclass
class ClusterAnswers:
    """A cluster's answers; it refuses what is in `refuses`."""

    acls_answer: Any = field(default_factory=lambda: ([READ], []))
    users_answer: Any = ()
    quotas_answer: Any = ()
    tokens_answer: Any = ()
    broker_configs_answer: Any = ()
    group_configs_answer: Any = ()
    metrics_answer: Any = ()
    features_answer: Any = ()
    registrations_answer: Any = ()
    refuses: tuple[object, ...] = ()
    done: list[object] = field(default_factory=list)

    # The ACLs, users, tokens and quotas of the cluster.

    def acls(self) -> Any:
        return self.acls_answer

    def users(self) -> Any:
        return self.users_answer

    def client_quotas(self) -> Any:
        return self.quotas_answer

    def delegation_tokens(self) -> Any:
        return self.tokens_answer

    def create_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        return {rule: self._do(rule) for rule in rules}

    def delete_acls(self, rules: Sequence[Acl]) -> dict[Acl, str]:
        return {rule: self._do(("deleted", rule)) for rule in rules}

    def set_quotas(self, quotas: Mapping[QuotaKey, object]) -> dict[QuotaKey, str]:
        return {entity: self._do(entity) for entity in quotas}

    # Its dynamic configs.

    def of_brokers(self) -> Any:
        return self.broker_configs_answer

    def of_groups(self, groups: Any) -> Any:
        return self.group_configs_answer

    def of_client_metrics(self) -> Any:
        return self.metrics_answer

    def set_on_broker(self, broker: int, name: str, value: str) -> str:
        return self._do((broker, name, value))

    def set_on_all_brokers(self, name: str, value: str) -> str:
        return self._do(("all brokers", name, value))

    def set_on_group(self, group: str, name: str, value: str) -> str:
        return self._do((group, name, value))

    # Its members.

    def broker_ids(self) -> Any:
        return [1]

    def features(self) -> Any:
        return self.features_answer

    def registrations(self) -> Any:
        return self.registrations_answer

    def _do(self, change: object) -> str:
        if change in self.refuses:
            return "no"
        self.done.append(change)
        return ""


def captured(answers: ClusterAnswers) -> Metadata:
    return merge([read_brokers(cluster(answers), {}, "source", ["billing"])], "now", 1).metadata


def cluster(answers: ClusterAnswers) -> Cluster:
    @dataclass
    class Stand:
        security: ClusterAnswers
        dynamic_configs: ClusterAnswers
        members: ClusterAnswers
        connection: Any

        def topic_configs(self, topics: Any) -> dict[str, dict[str, str]]:
            return {}

    @dataclass
    class Connected:
        address: str
        properties: dict[str, str]

    connected = Connected("target cluster at h:1", {"bootstrap.servers": "h:1"})
    return cast(Cluster, Stand(answers, answers, answers, connected))


@pytest.mark.parametrize(
    ("before", "answers"),
    [((), [(1,), (1,), ()]), ((1,), [(1,)]), ((1,), [(1, 2), (1, 2), (1,)])],
    ids=["an election", "without a leader for long", "another one"],
)
def test_a_partition_that_had_no_leader_before_is_not_waited_for(
    before: tuple[int, ...], answers: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "attempts", lambda *_: range(9))
    asked: list[tuple[int, ...]] = []

    def topics(names: Any) -> dict[str, Any]:
        asked.append(answers[len(asked)])
        return {name: SimpleNamespace(name=name, offline=asked[-1]) for name in names}

    source, known = cast(Cluster, SimpleNamespace(topics=topics)), {TopicPartition("orders", p) for p in before}
    assert topics_with_leaders(source, ["orders"], known)["orders"].offline == answers[-1]
    assert asked == answers


def test_everything_that_is_told() -> None:
    answers = ClusterAnswers(
        users_answer=[ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096)],
        broker_configs_answer=[
            BrokerConfig(broker=None, name="log.retention.ms", value="1"),
            BrokerConfig(broker=12, name="ssl.keystore.password", value=None),
        ],
        group_configs_answer=[GroupConfig(group="billing", name="consumer.session.timeout.ms", value="45000")],
    )
    metadata = captured(answers)
    assert metadata.acls == (READ,)
    assert metadata.scram_users == (ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096),)
    assert metadata.broker_configs == (
        BrokerConfig(broker=None, name="log.retention.ms", value="1"),
        BrokerConfig(broker=12, name="ssl.keystore.password", value=None),
    )
    assert metadata.group_configs == (GroupConfig(group="billing", name="consumer.session.timeout.ms", value="45000"),)
    assert metadata.not_carried == NEVER
    assert settings_warnings(metadata) == []


def test_a_cluster_without_authorizer_has_no_acls_and_that_is_no_news() -> None:
    found = captured(ClusterAnswers(acls_answer=Unavailable("not there", "no authorizer")))
    assert found.acls == ()
    assert [(n.what, n.reason) for n in found.not_carried if n not in NEVER] == [("ACLs", "not there")]
    assert settings_warnings(found) == []


def test_denied_settings_are_one_warning() -> None:
    no = Unavailable("denied", "it takes more")
    metadata = captured(ClusterAnswers(acls_answer=no, users_answer=no, broker_configs_answer=no))
    assert (metadata.acls, metadata.scram_users, metadata.broker_configs, metadata.group_configs) == (
        None,
        None,
        None,
        (),
    )
    assert settings_warnings(metadata) == [
        "not in this restore point, since its user may not describe them: ACLs, SCRAM users, broker configs; "
        "to see which rights it lacks: kbackup check"
    ]


def test_failures_are_reported_and_unsupported_settings_are_not() -> None:
    metadata = captured(
        ClusterAnswers(
            users_answer=Unavailable("failed", "timed out"), group_configs_answer=Unavailable("not supported", "old")
        )
    )
    assert settings_warnings(metadata) == ["SCRAM users are not in this restore point: timed out"]
    assert metadata.group_configs is None


def test_acls_that_the_client_library_does_not_know_are_named() -> None:
    strange = ["for User:a on strange, by numbers (9, 3, 3, 3)"]
    found = captured(ClusterAnswers(acls_answer=([READ], strange)))
    assert found.acls == (READ,)
    assert "ACL: for User:a on strange, by numbers (9, 3, 3, 3)" in {n.what for n in found.not_carried}


@pytest.mark.parametrize("reason", ["not supported", "failed"])
def test_where_some_settings_cannot_be_known_the_rest_is_captured(reason: Any) -> None:
    no = Unavailable(reason, "no connection")
    configs = [BrokerConfig(broker=None, name="log.retention.ms", value="1")]
    answers = ClusterAnswers(
        broker_configs_answer=configs,
        quotas_answer=no,
        tokens_answer=no,
        metrics_answer=no,
        features_answer=no,
        registrations_answer=no,
    )
    metadata = captured(answers)
    lacking = {n.what for n in metadata.not_carried if n not in NEVER}
    assert lacking == {"client quotas", "delegation tokens", "client metrics", "features", "registrations"}
    assert (metadata.client_quotas, metadata.delegation_tokens, metadata.features) == (None, None, None)
    assert metadata.broker_configs == tuple(configs)
    assert len(settings_warnings(metadata)) == (reason == "failed")
    assert {*metadata.sources} == {"topics", "acls", "scram_users", "broker_configs", "group_configs"}


def test_a_cluster_without_delegation_tokens_has_none_and_says_so() -> None:
    quota = ClientQuota(entity={"user": None}, quotas={"producer_byte_rate": 1.0})
    on_user = acl("b o%b", resource="user", operation="create_tokens")
    answers = ClusterAnswers(
        acls_answer=([READ, on_user], []),
        quotas_answer=[quota],
        tokens_answer=Unavailable("not there", "tokens are disabled"),
    )
    metadata = captured(answers)
    assert (metadata.client_quotas, metadata.delegation_tokens) == ((quota,), ())
    assert metadata.acls == (READ, on_user)
    assert [(n.what, n.reason) for n in metadata.not_carried if n not in NEVER] == [("delegation tokens", "not there")]
    assert {*metadata.sources.values()} == {"brokers"}
    assert {"client_quotas", "delegation_tokens"} <= {*metadata.sources}


# Settings of a restore point are compared with a cluster and written to it.


DENY = acl(principal="User:b", permission="deny")


def plan(*settings: str, point: int = 2) -> RestorePlan:
    return restore_plan(restore_point=point, settings=settings)


def test_nothing_is_looked_at_where_nothing_is_asked_for(tmp_path: Any) -> None:
    assert compare_settings(open_store(str(tmp_path)), plan(), cluster(ClusterAnswers())) is None
    captures = SettingsCaptures(RestoreJournal(MemoryStore(), "r"))
    assert apply_settings(cluster(ClusterAnswers()), captures, "target", None) is None
    assert list(captures.every()) == []


@pytest.mark.parametrize("part", ["acls", "configs", "users"])
def test_an_older_restore_point_is_refused(part: str, tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    make_archive(store)
    with pytest.raises(RefusedError, match=r"restore point 2 does not tell its .*older version"):
        compare_settings(store, plan(part), cluster(ClusterAnswers()))


def test_a_folder_of_the_java_tool_has_none(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="holds no settings"):
        compare_settings(open_store(str(tmp_path)), plan("acls", point=0), cluster(ClusterAnswers()))


def test_refused_settings_are_missing_and_others_are_set() -> None:
    set_ = ConfigChange(kind="broker", owner="1", name="num.io.threads", before=None, after="4")
    refused = ConfigChange(kind="group", owner="g", name="x", before="1", after="2")
    acls = captured(ClusterAnswers(acls_answer=([DENY, READ], []))).acls or ()
    of_all = ConfigChange(kind="broker", owner="", name="min.insync.replicas", before="1", after="2", of_all=True)
    quota = QuotaChange(entity={"user": "a", "client-id": None}, name="producer_byte_rate", before=None, after=1)
    refuses = (READ, ("g", "x", "2"), ("all brokers", "min.insync.replicas", "2"), quota.key[0])
    answers = ClusterAnswers(refuses=refuses)
    planned = SettingsReport(acls=acls, configs=(set_, refused, of_all), quotas=(quota,), missing=("a user",))
    captures = SettingsCaptures(RestoreJournal(MemoryStore(), "r"))
    done = apply_settings(cluster(answers), captures, "target", planned)
    assert done is not None
    assert answers.done == [DENY, (1, "num.io.threads", "4")]
    assert (done.acls, done.configs, done.quotas) == (acls[:1], (set_,), ())
    assert done.missing == (
        "a user",
        "ACL allow read for User:a from * on topic orders (literal) was not made: no; set it by hand: kafka-acls.sh "
        "--bootstrap-server h:1 --add --allow-principal User:a --allow-host '*' --operation Read --topic orders "
        "--resource-pattern-type literal",
        "config x of group g was not set: no; set it by hand: kafka-configs.sh --bootstrap-server h:1 --alter "
        "--entity-type groups --entity-name g --add-config x=2",
        "config min.insync.replicas of all brokers was not set: no; set it by hand: kafka-configs.sh "
        "--bootstrap-server h:1 --alter --entity-type brokers --entity-default --add-config min.insync.replicas=2",
        "quota producer_byte_rate of user a, default client-id was not set: no; set it by hand: "
        "kafka-configs.sh --bootstrap-server h:1 --alter --entity-type users --entity-name a --entity-type clients "
        "--entity-default --add-config producer_byte_rate=1",
    )
    (before,) = captures.every()
    assert before.changes == planned.changes
