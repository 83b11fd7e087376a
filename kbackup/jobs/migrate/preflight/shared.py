"""Checks of what controllers must share with the brokers before they rule them: rights, secrets, logins, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.preflight.line import Line, failed, listed, not_looked_at, ok
from kbackup.jobs.migrate.preflight.listeners import inter_broker_name, protocols_of
from kbackup.jobs.migrate.unread import NotRead, first_unread
from kbackup.metadata.encoder import can_decrypt

AUTHORIZER = "controllers: authorizer"
SUPER_USERS = "controllers: super.users"
ENCODER = "controllers: password.encoder.secret"
TOKENS = "controllers: delegation.token.secret.key"
ZNODE_ACLS = "controllers: zookeeper.set.acl"
LOGIN = "controllers: login to the brokers"
QUORUM = "controllers: quorum addresses"

_AUTHORIZER = "authorizer.class.name"
_SECRET = "password.encoder.secret"  # noqa: S105  # the name of a property
_TOKEN_KEYS = ("delegation.token.secret.key", "delegation.token.master.key")
_STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = {"kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer"}
_ANONYMOUS = "User:ANONYMOUS"
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")


def check_authorizer(findings: Findings) -> Line:
    """Check that controllers have an authorizer where brokers have one: else everybody may do everything there."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(AUTHORIZER, sides)
    controllers, brokers = sides
    classes = {c.file: c.properties.get(_AUTHORIZER, "").strip() for c in controllers}
    if old := [file for file, name in classes.items() if name in _OF_ZOOKEEPER]:
        return failed(
            AUTHORIZER, f"keeps its ACLs in ZooKeeper: {listed(old)}", f"set {_AUTHORIZER}={_STANDARD}"
        )
    guarded = [broker for broker, configs in brokers.items() if configs.get(_AUTHORIZER)]
    without = [file for file, name in classes.items() if not name]
    if guarded and without:
        return failed(
            AUTHORIZER,
            f"brokers {listed(guarded)} have one, not {listed(without)}",
            f"set {_AUTHORIZER}={_STANDARD}: without it every user may do everything by the controllers",
        )
    return ok(AUTHORIZER, f"on {len(classes)} controllers" if guarded else "neither side has one")


def check_super_users(findings: Findings) -> Line:
    """Check that the controllers' own principal is in their `super.users`: ACLs count only after the quorum has a
    leader, which needs their own requests."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(SUPER_USERS, findings.controllers)
    unknown: list[str] = []
    for controller in findings.controllers:
        properties = controller.properties
        if not properties.get(_AUTHORIZER, "").strip():
            continue
        users = [user.strip() for user in properties.get("super.users", "").split(";") if user.strip()]
        principal = principal_of(properties)
        if principal is None and not set(users) - {_ANONYMOUS}:
            principal = "the principal by which controllers log in to each other"
        if principal is not None and principal not in users:
            return failed(
                SUPER_USERS,
                f"{controller.file} lacks {principal}, the controllers' own",
                "add to super.users the principals of controllers and brokers, with semicolons between",
            )
        if principal is None:
            unknown.append(controller.file)
    if unknown:
        why = f"the principal of the controllers can't be told from {listed(unknown)}"
        return not_looked_at(SUPER_USERS, NotRead(why, "compare it with super.users by hand"))
    return ok(SUPER_USERS, "the controllers' own principal is there, where they have an authorizer")


def principal_of(properties: Mapping[str, str]) -> str | None:
    """Return the principal by which controllers with these properties log in to each other; None where the file
    doesn't tell it."""
    name = properties.get("controller.listener.names", "").partition(",")[0].strip()
    prefix = f"listener.name.{name.lower()}."

    def own(key: str) -> str:
        return (properties.get(prefix + key) or properties.get(key) or "").strip()

    protocol = protocols_of(properties).get(name.upper(), "")
    if own("principal.builder.class"):
        return None
    if protocol == "PLAINTEXT" or (protocol == "SSL" and own("ssl.client.auth") in ("", "none")):
        return _ANONYMOUS
    if protocol == "SSL":
        return None if own("ssl.principal.mapping.rules") not in ("", "DEFAULT") else _of_certificate(own)
    mechanism = properties.get("sasl.mechanism.controller.protocol", "GSSAPI").strip().lower()
    login = _USERNAME.search(properties.get(f"{prefix}{mechanism}.sasl.jaas.config", ""))
    user = next((text for text in login.groups() if text is not None), "") if login else ""
    return f"User:{user}" if user and "${" not in user else None


def _of_certificate(own: Callable[[str], str]) -> str | None:
    """Return the principal of the certificate in a keystore of the types PEM or PKCS12. None for other types, and for
    names with attributes that Java writes as numbers."""
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    chain, password = own("ssl.keystore.certificate.chain").encode(), own("ssl.keystore.password").encode()
    try:
        data = chain or Path(own("ssl.keystore.location")).read_bytes()
        if b"-----BEGIN CERTIFICATE-----" in data:
            certificate = load_pem_x509_certificate(data[data.index(b"-----BEGIN CERTIFICATE-----") :])
        elif (entry := load_pkcs12(data, password or None).cert) is not None:
            certificate = entry.certificate
        else:
            return None
    except (OSError, ValueError):
        return None
    name = certificate.subject.rfc4514_string()
    return None if re.search(r"(^|[,+])[\d.]+=", name) else f"User:{name}"


def check_encoder(findings: Findings) -> Line:
    """Check that controllers have the secret by which brokers encrypt sensitive configs in ZooKeeper."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(ENCODER, findings.controllers)
    configs, zookeeper = findings.configs, findings.zookeeper
    encrypted = {} if isinstance(zookeeper, NotRead) else zookeeper.encrypted
    having = [] if isinstance(configs, NotRead) else [b for b, c in configs.items() if _SECRET in c]
    secrets = {c.file: c.properties.get(_SECRET, "") for c in findings.controllers}
    hint = (
        f"set {_SECRET} to the value that the brokers have: without it sensitive configs stay encrypted for ever, and "
        "later ones get into ZooKeeper in plain text"
    )
    if (without := [file for file, secret in secrets.items() if not secret]) and (encrypted or having):
        has = f"encrypted: {listed(encrypted)}" if encrypted else f"brokers {listed(having)} have one"
        return failed(ENCODER, f"not set in {listed(without)}; {has}", hint)
    for file, secret in secrets.items():
        opaque = [n for n, v in encrypted.items() if "${" not in secret and can_decrypt(v, secret) is False]
        if opaque:
            return failed(ENCODER, f"the one in {file} doesn't decrypt {listed(opaque)}", hint)
    if unread := first_unread(zookeeper, configs):
        return not_looked_at(ENCODER, unread)
    return ok(ENCODER, f"{len(encrypted)} encrypted configs in ZooKeeper")


def check_tokens(findings: Findings) -> Line:
    """Check that controllers have the key of delegation tokens where brokers have it."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(TOKENS, sides)
    controllers, brokers = sides
    having = [b for b, configs in brokers.items() if any(key in configs for key in _TOKEN_KEYS)]
    without = [c.file for c in controllers if not any(c.properties.get(key) for key in _TOKEN_KEYS)]
    if having and without:
        return failed(
            TOKENS,
            f"brokers {listed(having)} have it, not {listed(without)}",
            f"set {_TOKEN_KEYS[0]} to the value that the brokers have",
        )
    return ok(TOKENS, "on both sides" if having else "brokers have none")


def check_znode_acls(findings: Findings) -> Line:
    """Check that controllers protect znodes where brokers do."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(ZNODE_ACLS, sides)
    controllers, brokers = sides
    protecting = [broker for broker, configs in brokers.items() if _protects(configs)]
    without = [c.file for c in controllers if not _protects(c.properties)]
    if protecting and without:
        return failed(
            ZNODE_ACLS,
            f"true on brokers {listed(protecting)}, not in {listed(without)}",
            "set zookeeper.set.acl=true: else everybody may change what the controllers write to ZooKeeper",
        )
    return ok(ZNODE_ACLS, "true on both sides" if protecting else "brokers don't protect znodes")


def _protects(properties: Mapping[str, str]) -> bool:
    return properties.get("zookeeper.set.acl", "").strip().lower() == "true"


def check_login(findings: Findings) -> Line:
    """Check that controllers can log in at the brokers' inter-broker listener where it wants SASL."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(LOGIN, sides)
    unknown: NotRead | None = None
    for broker, configs in sorted(sides[1].items()):
        name = inter_broker_name(configs)
        if not protocols_of(configs).get(name, "").startswith("SASL_"):
            continue
        mechanism = _mechanism(configs)
        key = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        for controller in sides[0]:
            if (other := _mechanism(controller.properties)) != mechanism:
                return failed(
                    LOGIN,
                    f"broker {broker} wants {mechanism}, {controller.file} logs in by {other}",
                    f"set sasl.mechanism.inter.broker.protocol={mechanism} on the controllers",
                )
            if controller.properties.get(key):
                continue
            if key in configs:
                return failed(LOGIN, f"{controller.file} has no {key}", "copy it from the brokers")
            unknown = NotRead(
                f"neither broker {broker} nor {controller.file} has {key}",
                "set it on the controllers, or give their JVM a JAAS file with KafkaServer as the brokers' JVM has",
            )
    return not_looked_at(LOGIN, unknown) if unknown else ok(LOGIN, "the controllers have what it takes")


def _mechanism(properties: Mapping[str, str]) -> str:
    return properties.get("sasl.mechanism.inter.broker.protocol", "").strip() or "GSSAPI"


def check_quorum(findings: Findings) -> Line:
    """Check that somebody answers at every address of the quorum."""
    if isinstance(findings.quorum, NotRead):
        return not_looked_at(QUORUM, findings.quorum)
    if not findings.quorum:
        return failed(QUORUM, "none is set", "set controller.quorum.bootstrap.servers on controllers")
    if dead := [address for address, sign in findings.quorum.items() if sign != "answers"]:
        return failed(
            QUORUM,
            f"nobody answers at {listed(dead)}",
            "start the controllers, which wait for the brokers, or correct controller.quorum.bootstrap.servers",
        )
    return ok(QUORUM, f"{listed(findings.quorum)} answer")
