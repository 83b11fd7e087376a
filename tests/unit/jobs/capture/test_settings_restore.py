"""Settings of a restore point are compared with a cluster and written to it."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.settings.before import SettingsCaptures
from kbackup.jobs.settings.plan import ConfigChange, QuotaChange, SettingsReport
from kbackup.jobs.settings.write import apply_settings, compare_settings
from kbackup.kafka.security_types import AclRule, Untold
from kbackup.store import open_store
from tests.support.archives import make_archive
from tests.support.cluster_answers import READ, ClusterAnswers, captured, cluster
from tests.support.memory_store import MemoryStore

DENY = AclRule("topic", "orders", "literal", "User:b", "*", "read", "deny")


def plan(*settings: str, point: int = 2) -> RestorePlan:
    return RestorePlan(
        restore_id="r",
        archive_id="a",
        restore_point=point,
        target_cluster_id="target",
        created_at="now",
        transactions=True,
        transaction_bytes=1,
        into_existing=False,
        topics=(),
        units=(),
        groups=(),
        settings=settings,  # type: ignore[arg-type]  # as it comes from a file
    )


def test_nothing_is_looked_at_where_nothing_is_asked_for(tmp_path: Any) -> None:
    assert compare_settings(open_store(str(tmp_path)), plan(), cluster(ClusterAnswers())) is None
    captures = SettingsCaptures(MemoryStore(), "r")
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
    of_all = ConfigChange(
        kind="broker", owner="", name="min.insync.replicas", before="1", after="2", of_all=True
    )
    quota = QuotaChange(
        entity={"user": "a", "client-id": None}, name="producer_byte_rate", before=None, after=1
    )
    answers = ClusterAnswers(refuses=(READ, ("g", "x", "2")), session=Untold("failed", "no connection"))
    planned = SettingsReport(acls=acls, configs=(set_, refused, of_all), quotas=(quota,), missing=("a user",))
    captures = SettingsCaptures(MemoryStore(), "r")
    done = apply_settings(cluster(answers), captures, "target", planned)
    assert done is not None
    assert answers.done == [DENY, ("1", "num.io.threads", "4")]
    assert (done.acls, done.configs, done.quotas) == (acls[:1], (set_,), ())
    assert done.missing == (
        "a user",
        "ACL allow read for User:a from * on topic orders (literal) was not made: no; set it by hand: kafka-acls.sh "
        "--bootstrap-server h:1 --add --allow-principal User:a --allow-host '*' --operation Read --topic orders "
        "--resource-pattern-type literal",
        "config x of group g was not set: no; set it by hand: kafka-configs.sh --bootstrap-server h:1 --alter "
        "--entity-type groups --entity-name g --add-config x=2",
        "config min.insync.replicas of all brokers was not set: no connection; set it by hand: kafka-configs.sh "
        "--bootstrap-server h:1 --alter --entity-type brokers --entity-default --add-config min.insync.replicas=2",
        "quota producer_byte_rate of user a, default client-id was not set: no connection; set it by hand: "
        "kafka-configs.sh --bootstrap-server h:1 --alter --entity-type users --entity-name a --entity-type clients "
        "--entity-default --add-config producer_byte_rate=1",
    )
    (before,) = captures.every()
    assert before.changes == planned.changes
