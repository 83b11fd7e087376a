"""A cluster that answers requests for its settings as a test says."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from kbackup.archive.models import Metadata
from kbackup.jobs.capture import read_brokers
from kbackup.jobs.metadata import merge
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metadata.entities import Acl
from tests.support.metadata_entities import acl_of

READ = acl_of("topic", "orders", "literal", "User:a", "*", "read", "allow")


@dataclass(frozen=True)
class Session:
    """A session for admin requests, and its answers."""

    quotas_answer: Any = ()
    tokens_answer: Any = ()
    default_answer: Any = ()
    acls_answer: Any = ()

    @property
    def read(self) -> Session:
        return self

    def acls(self) -> Any:
        return self.acls_answer

    def default_broker_configs(self) -> Any:
        return self.default_answer

    def client_quotas(self) -> Any:
        return self.quotas_answer

    def delegation_tokens(self) -> Any:
        return self.tokens_answer

    def client_metrics(self) -> Any:
        return ()

    def features(self) -> Any:
        return ()

    def registrations(self) -> Any:
        return ()


NOTHING = Session()


@dataclass
class ClusterAnswers:
    """A cluster's answers; it refuses what is in `refuses`."""

    acls_answer: Any = field(default_factory=lambda: ([READ], []))
    users_answer: Any = field(default_factory=list)
    configs_answer: Any = field(default_factory=list)
    group_configs_answer: Any = field(default_factory=list)
    session: Any = NOTHING
    refuses: tuple[object, ...] = ()
    done: list[object] = field(default_factory=list)

    def acls(self) -> Any:
        return self.acls_answer

    def users(self) -> Any:
        return self.users_answer

    def brokers(self) -> Any:
        return [1]

    def broker_configs(self) -> Any:
        return self.configs_answer

    def group_configs(self, groups: Any) -> Any:
        return self.group_configs_answer

    def create_acls(self, rules: list[Acl]) -> dict[Acl, str]:
        return {rule: self._do(rule) for rule in rules}

    def set_broker_config(self, broker: str, name: str, value: str) -> str:
        return self._do((broker, name, value))

    def set_group_config(self, group: str, name: str, value: str) -> str:
        return self._do((group, name, value))

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
        connection: Any

        def topic_configs(self, topics: Any) -> dict[str, dict[str, str]]:
            return {}

        def admin_session(self) -> Any:
            return nullcontext(self.security.session)

    @dataclass
    class Connected:
        address: str
        properties: dict[str, str]

    return cast(Cluster, Stand(answers, Connected("target cluster at h:1", {"bootstrap.servers": "h:1"})))
