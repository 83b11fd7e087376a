"""A broker that asks everybody who they are, and the certificates of one run of the tests."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from confluent_kafka import admin
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scripts.dev.kafka import Broker


class Issued(NamedTuple):
    """A certificate and its private key (PKCS8, not encrypted), both PEM."""

    certificate: str
    key: str


class Authority:
    """A certificate authority of its own: nobody else trusts it, and it is gone with the process."""

    def __init__(self, name: str = "kbackup test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = name
        is_authority = x509.BasicConstraints(ca=True, path_length=0)
        self.certificate = self._sign(_distinguished(name), self._key, is_authority, critical=True)

    def issue(
        self, name: str, *, organization: str = "", names: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> Issued:
        """Issue a certificate for `CN=name`: a client, or a server on this machine's loopback address, and at these
        names and addresses. Kubernetes takes the organization for the group of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        places: list[x509.GeneralName] = [x509.DNSName(each) for each in names]
        for address in {"127.0.0.1", *addresses}:
            places.append(x509.IPAddress(ipaddress.ip_address(address)))
        here = x509.SubjectAlternativeName(places)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Issued(self._sign(_distinguished(name, organization), key, here, critical=False), text.decode())

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, says: x509.ExtensionType, critical: bool
    ) -> str:
        """Return the certificate of a key, from yesterday to tomorrow, as PEM."""
        now, day = datetime.now(UTC), timedelta(days=1)
        issuer = _distinguished(self._name)
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - day).not_valid_after(now + day).add_extension(says, critical)
        made = builder.sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()


def _distinguished(name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


Acl = tuple[admin.ResourceType, str, admin.ResourcePatternType, str, str, admin.AclOperation, admin.AclPermissionType]
_SECURITY = "org.apache.kafka.common.security"
_SASL = "listener.name.sasl"
_TIMEOUT = 30.0


class SecuredBroker(Broker):
    """A `Broker` with two more listeners, both TLS: SASL (SCRAM-SHA-512, OAUTHBEARER with unsigned tokens) and MTLS.

    Kafka's own authorizer decides. CLIENT stays plain text, and who comes by it (`client()`) may do everything: tests
    prepare and look by it. `scram`, `token` and `certificate` give what a client needs to come as a user.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.authority = Authority()
        super().__init__(self._secured() | dict(properties or {}), listeners={"SASL": "SASL_SSL", "MTLS": "SSL"})

    def scram(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        return super().scram(user, password, mechanism) | {"ssl.ca.pem": self.authority.certificate}

    def oauth(self) -> dict[str, str]:
        """Without what gives the token."""
        trusted = {"security.protocol": "SASL_SSL", "ssl.ca.pem": self.authority.certificate}
        return {"bootstrap.servers": self.bootstrap_of("SASL"), **trusted, "sasl.mechanism": "OAUTHBEARER"}

    def token(self, user: str) -> dict[str, str]:
        """librdkafka makes the token itself, and signs it by nothing."""
        own = {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": f"principal={user}"}
        return self.oauth() | own

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
        info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = admin.UserScramCredentialUpsertion(name, info, password.encode(), secrets.token_bytes(16))
        superuser = self._admin()
        (made,) = superuser.alter_user_scram_credentials([upsertion]).values()
        made.result(_TIMEOUT)
        self._wait_metadata(0, self.scram(name, password), lambda seen: True, f"user {name}")

    def allow(self, user: str, operation: str, kind: str, name: str, prefixed: bool = False) -> Acl:
        """Do what `kafka-acls --add --allow-principal User:<user>` does.

        `kind` is topic, group, broker (the cluster, by the name `kafka-cluster`) or transactional_id."""
        pattern = admin.ResourcePatternType.PREFIXED if prefixed else admin.ResourcePatternType.LITERAL
        resource, allowed = admin.ResourceType[kind.upper()], admin.AclOperation[operation.upper()]
        acl = (resource, name, pattern, f"User:{user}", "*", allowed, admin.AclPermissionType.ALLOW)
        client = self._admin()
        (made,) = client.create_acls([admin.AclBinding(*acl)]).values()
        made.result(_TIMEOUT)
        return acl

    def forbid(self, acls: Sequence[Acl]) -> None:
        """Take back what was allowed."""
        client = self._admin()
        for gone in client.delete_acls([admin.AclBindingFilter(*acl) for acl in acls]).values():
            gone.result(_TIMEOUT)

    def _admin(self) -> admin.AdminClient:
        """To be kept until its futures are done: they fail when it goes."""
        return admin.AdminClient(self.client(log_level=0))

    def _secured(self) -> dict[str, str]:
        own = self.authority.issue("broker")
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": own.certificate,
            "ssl.keystore.key": own.key,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.authority.certificate,
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
            "listener.name.mtls.ssl.client.auth": "required",
            f"{_SASL}.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            f"{_SASL}.scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
            f"{_SASL}.oauthbearer.sasl.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        }
