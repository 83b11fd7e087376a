"""Read delegation tokens, quotas and the like by requests that confluent-kafka has no call for.

A refusal of the brokers is an answer (`Untold`), not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from kbackup.kafka.admin.security_types import AclRule, Setting, Untold
from kbackup.kafka.admin_protocol import answers, words
from kbackup.kafka.admin_protocol.connection import BrokerConnection
from kbackup.kafka.admin_protocol.errors import NoConnectionError, RefusedRequestError
from kbackup.kafka.admin_protocol.messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeDelegationTokenRequest,
    DescribeQuorumRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
from kbackup.kafka.client.client import Connection
from kbackup.kafka.client.retry import TIMEOUT
from kbackup.metadata.entities import ClientMetrics, ClientQuota, DelegationToken, Feature, Registration

T = TypeVar("T")

_FETCH = 1  # Kafka's number of the request
_LOG = "__cluster_metadata"


class Reader:
    """Each method sends one request, or few. What they return is sorted."""

    def __init__(self, connection: Connection, broker: BrokerConnection) -> None:
        self._connection = connection
        self._broker = broker

    def client_quotas(self) -> list[ClientQuota] | Untold:
        request = DescribeClientQuotasRequest(components=[], strict=False)
        return self._answer_or_untold(
            "describing client quotas", lambda: answers.quotas_of(self._broker.ask(request))
        )

    def delegation_tokens(self) -> list[DelegationToken] | Untold:
        """The tokens that our user may describe."""
        request = DescribeDelegationTokenRequest(owners=None)
        return self._answer_or_untold(
            "describing delegation tokens", lambda: answers.tokens_of(self._broker.ask(request))
        )

    def acls(self) -> tuple[list[AclRule], list[str]] | Untold:
        """Every ACL, and in words those of a kind that is not known here."""
        request = DescribeAclsRequest(
            resource_type_filter=words.ANY,
            resource_name_filter=None,
            pattern_type_filter=words.ANY,
            principal_filter=None,
            host_filter=None,
            operation=words.ANY,
            permission_type=words.ANY,
        )
        return self._answer_or_untold("describing ACLs", lambda: answers.acls_of(self._broker.ask(request)))

    def default_broker_configs(self) -> list[Setting] | Untold:
        """The cluster-wide default of brokers' dynamic configs."""

        def ask() -> list[Setting]:
            (described,) = self._configs(words.BROKER, [""])
            return answers.defaults_of(described.configs)

        return self._answer_or_untold("reading configs of brokers", ask)

    def client_metrics(self) -> list[ClientMetrics] | Untold:
        """The subscriptions to metrics of clients."""

        def ask() -> list[ClientMetrics]:
            request = ListConfigResourcesRequest(resource_types=[words.CLIENT_METRICS])
            listed = self._broker.ask(request).config_resources
            names = [r.resource_name for r in listed if r.resource_type == words.CLIENT_METRICS]
            return answers.metrics_of(self._configs(words.CLIENT_METRICS, names) if names else ())

        return self._answer_or_untold("describing client metrics", ask)

    def features(self) -> list[Feature] | Untold:
        found = self._broker.features
        if found is None:
            return Untold("not supported", f"{self._connection.address} does not tell its features")
        return [Feature(name=name, level=level) for name, level in sorted(found.items())]

    def registrations(self) -> list[Registration] | Untold:
        """Brokers, by the listener that we use, and controllers where there is a quorum that we may ask for."""

        def ask() -> list[Registration]:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True
            )
            protocol = self._connection.properties.get("security.protocol", "plaintext").upper()
            brokers = answers.brokers_of(self._broker.ask(request), protocol)
            try:
                return [*brokers, *answers.controllers_of(self._broker.ask(_quorum()))]
            except RefusedRequestError:  # ZooKeeper's cluster, or a right that we don't have
                return brokers

        return self._answer_or_untold("describing the cluster", ask)

    def fetch_version(self) -> int:
        """The newest version of Fetch that the broker knows, which tells its release."""
        return self._broker.newest_version(_FETCH)

    def reassignments(self) -> list[str] | Untold:
        """The partitions that are on their way to other brokers, such as orders-0."""

        def ask() -> list[str]:
            request = ListPartitionReassignmentsRequest(timeout_ms=int(TIMEOUT * 1000), topics=None)
            topics = self._broker.ask(request).topics
            return sorted(f"{topic.name}-{p.partition_index}" for topic in topics for p in topic.partitions)

        return self._answer_or_untold("listing reassignments", ask)

    def _configs(self, kind: int, names: list[str]) -> list[Any]:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[
                resource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        described = list(self._broker.ask(request).results)
        for each in described:
            if each.error_code:
                raise RefusedRequestError(each.error_code, each.error_message or "")
        return described

    def _answer_or_untold(self, doing: str, ask: Callable[[], T]) -> T | Untold:
        try:
            return ask()
        except RefusedRequestError as refused:
            error = KafkaError(refused.code, refused.words) if refused.words else KafkaError(refused.code)
            return Untold.of(error, doing, self._connection)
        except NoConnectionError as error:
            return Untold("failed", f"{self._connection.address} did not answer {doing}: {error}")


def _quorum() -> Any:
    topic = DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    return DescribeQuorumRequest(topics=[topic(topic_name=_LOG, partitions=[partition])])
