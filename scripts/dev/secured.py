"""A broker that asks everybody who they are, and allows nothing that nobody has allowed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from scripts.dev.certificates import Authority
from scripts.dev.kafka import Broker

_SECURITY = "org.apache.kafka.common.security"
_SASL = "listener.name.sasl"
_ITERATIONS = 4096
_TIMEOUT = 30.0


class SecuredBroker(Broker):
    """A `Broker` with two more listeners, both TLS: SASL (SCRAM-SHA-512, OAUTHBEARER with unsigned tokens) and MTLS.

    Kafka's own authorizer decides. CLIENT stays plain text, and who comes by it (`client()`) may do everything: tests
    prepare and look by it. `scram`, `token` and `certificate` give what a client needs to come as a user.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.authority = Authority()
        super().__init__(
            self._secured() | dict(properties or {}), listeners={"SASL": "SASL_SSL", "MTLS": "SSL"}
        )

    def scram(self, user: str, password: str) -> dict[str, str]:
        return self._sasl("SCRAM-SHA-512") | {"sasl.username": user, "sasl.password": password}

    def oauth(self) -> dict[str, str]:
        """Without what gives the token."""
        return self._sasl("OAUTHBEARER")

    def token(self, user: str) -> dict[str, str]:
        """librdkafka makes the token itself, and signs it by nothing."""
        return self.oauth() | {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={user}",
        }

    def certificate(self, user: str) -> dict[str, str]:
        """A client certificate for `User:<user>`, inline."""
        issued = self.authority.issue(user)
        return {
            "bootstrap.servers": self.bootstrap_of("MTLS"),
            "security.protocol": "SSL",
            "ssl.ca.pem": self.authority.certificate,
            "ssl.certificate.pem": issued.certificate,
            "ssl.key.pem": issued.key,
        }

    def add_user(self, name: str, password: str) -> None:
        """A SCRAM user; returns when the broker knows it."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
        upsertion = UserScramCredentialUpsertion(name, info, password.encode(), secrets.token_bytes(16))
        anybody = self._admin()
        (made,) = anybody.alter_user_scram_credentials([upsertion]).values()
        made.result(_TIMEOUT)
        admin = AdminClient({**self.scram(name, password), "log_level": 0})

        def known() -> bool:
            try:
                admin.list_topics(timeout=1)
            except KafkaException:
                return False
            return True

        self._nodes[0].wait_ready(known, f"user {name}", 30)

    def allow(self, user: str, operation: str, kind: str, name: str, prefixed: bool = False) -> AclBinding:
        """Do what `kafka-acls --add --allow-principal User:<user>` does.

        `kind` is topic, group, broker (the cluster, by the name `kafka-cluster`) or transactional_id."""
        acl = AclBinding(
            ResourceType[kind.upper()],
            name,
            ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )
        admin = self._admin()
        (made,) = admin.create_acls([acl]).values()
        made.result(_TIMEOUT)
        return acl

    def forbid(self, acls: Sequence[AclBinding]) -> None:
        """Take back what was allowed."""
        filters = [
            AclBindingFilter(
                acl.restype,
                acl.name,
                acl.resource_pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for acl in acls
        ]
        admin = self._admin()
        for gone in admin.delete_acls(filters).values():
            gone.result(_TIMEOUT)

    def _admin(self) -> AdminClient:
        """To be kept until its futures are done: they fail when it goes."""
        return AdminClient(self.client(log_level=0))

    def _sasl(self, mechanism: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap_of("SASL"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": self.authority.certificate,
            "sasl.mechanism": mechanism,
        }

    def _secured(self) -> dict[str, str]:
        own = self.authority.issue("broker")
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _one_line(own.certificate),
            "ssl.keystore.key": _one_line(own.key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _one_line(self.authority.certificate),
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
            "listener.name.mtls.ssl.client.auth": "required",
            f"{_SASL}.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            f"{_SASL}.scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
            f"{_SASL}.oauthbearer.sasl.jaas.config": (
                f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;"
            ),
        }


def _one_line(pem: str) -> str:
    """Return a PEM text on one line, for a properties file."""
    return pem.replace("\n", "\\n")
