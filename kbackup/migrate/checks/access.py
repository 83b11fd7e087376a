"""Checks of what controllers must share with the brokers before they rule them: rights, secrets, logins, addresses."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from kbackup.migrate.checks.base import Check, is_true, listed
from kbackup.migrate.checks.controllers import LISTENER_NAMES, inter_broker_name, protocols_of
from kbackup.migrate.states import NotRead, ProblemError, UnreadError, need, need_all
from kbackup.migrate.znodes import MigrationFindings

_AUTHORIZER = "authorizer.class.name"
_SECRET = "password.encoder.secret"  # noqa: S105  # the name of a property
_TOKEN_KEYS = ("delegation.token.secret.key", "delegation.token.master.key")
_STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = {"kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer"}
_ANONYMOUS = "User:ANONYMOUS"
_HASHES = {f"PBKDF2WithHmacSHA{bits}": f"sha{bits}" for bits in ("1", "256", "384", "512")}
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")
_NUMBERED_ATTRIBUTE = re.compile(r"(^|[,+])[\d.]+=")


def authorizer(findings: MigrationFindings) -> str:
    """Controllers have an authorizer where brokers have one: else everybody may do everything there."""
    controllers, brokers = findings.sides
    classes = {each.file: each.properties.get(_AUTHORIZER, "").strip() for each in controllers}
    old = [file for file, name in classes.items() if name in _OF_ZOOKEEPER]
    if old:
        raise ProblemError(f"keeps its ACLs in ZooKeeper: {listed(old)}", f"set {_AUTHORIZER}={_STANDARD}")
    guarded = [broker for broker, configs in brokers.items() if configs.get(_AUTHORIZER)]
    without = [file for file, name in classes.items() if not name]
    if guarded and without:
        raise ProblemError(
            f"brokers {listed(guarded)} have one, not {listed(without)}",
            f"set {_AUTHORIZER}={_STANDARD}: without it every user may do everything by the controllers",
        )
    return f"on {len(classes)} controllers" if guarded else "neither side has one"


def super_users(findings: MigrationFindings) -> str:
    """The controllers' own principal is in their `super.users`: ACLs count only after the quorum has a leader, which
    needs their own requests."""
    unknown: list[str] = []
    for controller in need(findings.controllers):
        properties = controller.properties
        if not properties.get(_AUTHORIZER, "").strip():
            continue
        users = _super_users_of(properties)
        principal = principal_of(properties)
        if principal is None and not users - {_ANONYMOUS}:
            # Whoever it is: nobody who logs in is a super user there.
            principal = "the principal by which controllers log in to each other"
        if principal is None:
            unknown.append(controller.file)
        elif principal not in users:
            raise ProblemError(
                f"{controller.file} lacks {principal}, the controllers' own",
                "add to super.users the principals of controllers and brokers, with semicolons between",
            )
    if unknown:
        why = f"the principal of the controllers can't be told from {listed(unknown)}"
        raise UnreadError(NotRead(why, "compare it with super.users by hand"))
    return "the controllers' own principal is there, where they have an authorizer"


def _super_users_of(properties: Mapping[str, str]) -> set[str]:
    users = {user.strip() for user in properties.get("super.users", "").split(";")}
    users.discard("")
    return users


def principal_of(properties: Mapping[str, str]) -> str | None:
    """Return the principal by which controllers with these properties log in to each other; None if the file doesn't
    have it."""
    first_listener, _, _ = properties.get(LISTENER_NAMES, "").partition(",")
    name = first_listener.strip()
    prefix = f"listener.name.{name.lower()}."

    def own(key: str) -> str:
        """Return a property of the listener, which wins over the same property of the node."""
        return (properties.get(prefix + key) or properties.get(key) or "").strip()

    if own("principal.builder.class"):
        return None  # the user's own code decides
    protocol = protocols_of(properties).get(name.upper(), "")
    asks_for_no_certificate = own("ssl.client.auth") in ("", "none")
    if protocol == "PLAINTEXT" or (protocol == "SSL" and asks_for_no_certificate):
        return _ANONYMOUS
    if protocol == "SSL":
        has_rules = own("ssl.principal.mapping.rules") not in ("", "DEFAULT")
        return None if has_rules else _of_certificate(own)
    mechanism = properties.get("sasl.mechanism.controller.protocol", "GSSAPI").strip().lower()
    login = properties.get(f"{prefix}{mechanism}.sasl.jaas.config", "")
    user = _user_of(login)
    is_reference = "${" in user  # to a secret that only the controller resolves
    return f"User:{user}" if user and not is_reference else None


def _user_of(login: str) -> str:
    """Return the username of a JAAS login, in whatever quotes; "" if it has none."""
    match = _USERNAME.search(login)
    if match is None:
        return ""
    quoted = [text for text in match.groups() if text is not None]
    return quoted[0]


def _of_certificate(own: Callable[[str], str]) -> str | None:
    """Return the principal of the certificate in a keystore of the types PEM or PKCS12. None for other types, and for
    names with attributes that Java writes as numbers."""
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    chain = own("ssl.keystore.certificate.chain").encode()
    password = own("ssl.keystore.password").encode() or None
    try:
        data = chain or Path(own("ssl.keystore.location")).read_bytes()
        pem = data.find(b"-----BEGIN CERTIFICATE-----")
        if pem >= 0:
            certificate = load_pem_x509_certificate(data[pem:])
        else:
            entry = load_pkcs12(data, password).cert
            if entry is None:
                return None
            certificate = entry.certificate
    except (OSError, ValueError):
        return None
    name = certificate.subject.rfc4514_string()
    return None if _NUMBERED_ATTRIBUTE.search(name) else f"User:{name}"


def encoder_secret(findings: MigrationFindings) -> str:
    """Controllers have the secret by which brokers encrypt sensitive configs in ZooKeeper."""
    configs, zookeeper = findings.configs, findings.zookeeper
    secrets = {each.file: each.properties.get(_SECRET, "") for each in need(findings.controllers)}
    encrypted = {} if isinstance(zookeeper, NotRead) else zookeeper.encrypted
    having: list[int] = []
    if not isinstance(configs, NotRead):
        having = [broker for broker, own in configs.items() if _SECRET in own]
    hint = (
        f"set {_SECRET} to the value that the brokers have: without it sensitive configs stay encrypted for ever, and "
        "later ones get into ZooKeeper in plain text"
    )
    without = [file for file, secret in secrets.items() if not secret]
    if without and (encrypted or having):
        has = f"encrypted: {listed(encrypted)}" if encrypted else f"brokers {listed(having)} have one"
        raise ProblemError(f"not set in {listed(without)}; {has}", hint)
    for file, secret in secrets.items():
        if "${" in secret:
            continue  # a reference that only the controller resolves
        opaque = [name for name, value in encrypted.items() if can_decrypt(value, secret) is False]
        if opaque:
            raise ProblemError(f"the one in {file} doesn't decrypt {listed(opaque)}", hint)
    # Only now: what one side shows is a problem, whether the other was read or not.
    need_all(zookeeper, configs)
    return f"{len(encrypted)} encrypted configs in ZooKeeper"


def can_decrypt(value: str, secret: str) -> bool | None:
    """Return whether `secret` decrypts a value; None if the value uses an algorithm that is not known here. Kafka's
    own check is the length of the password, which stands beside it."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # slow to load, rarely needed
    from cryptography.hazmat.primitives.padding import PKCS7

    fields: dict[str, str] = {}
    for field in value.split(","):
        name, _, text = field.partition(":")
        fields[name] = text
    digest = _HASHES.get(fields.get("keyFactoryAlgorithm", ""))
    if digest is None or fields.get("cipherAlgorithm") != "AES/CBC/PKCS5Padding":
        return None
    try:
        salt = base64.b64decode(fields["salt"])
        iterations = int(fields["iterations"])
        key_bytes = int(fields["keyLength"]) // 8
        key = hashlib.pbkdf2_hmac(digest, secret.encode(), salt, iterations, key_bytes)
        vector = base64.b64decode(fields["initializationVector"])
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
        ciphertext = base64.b64decode(fields["encryptedPassword"])
        padded = decryptor.update(ciphertext) + decryptor.finalize()
        unpadder = PKCS7(128).unpadder()
        password = unpadder.update(padded) + unpadder.finalize()
        # Java counts the units of UTF-16.
        length = len(password.decode().encode("utf-16-le")) // 2
        return length == int(fields["passwordLength"])
    except (KeyError, ValueError):
        return False


def token_key(findings: MigrationFindings) -> str:
    """Controllers have the key of delegation tokens where brokers have one."""
    controllers, brokers = findings.sides
    # By the names of the keys: brokers never show the value of a sensitive config.
    having: list[int] = []
    for broker, configs in brokers.items():
        if any(key in configs for key in _TOKEN_KEYS):
            having.append(broker)
    without: list[str] = []
    for controller in controllers:
        if not any(controller.properties.get(key) for key in _TOKEN_KEYS):
            without.append(controller.file)
    if having and without:
        raise ProblemError(
            f"brokers {listed(having)} have it, not {listed(without)}",
            f"set {_TOKEN_KEYS[0]} to the value that the brokers have",
        )
    return "on both sides" if having else "brokers have none"


def znode_acls(findings: MigrationFindings) -> str:
    """Controllers protect the znodes that they write where brokers protect theirs."""
    controllers, brokers = findings.sides
    protecting = [broker for broker, configs in brokers.items() if is_true(configs, "zookeeper.set.acl")]
    without = [each.file for each in controllers if not is_true(each.properties, "zookeeper.set.acl")]
    if protecting and without:
        raise ProblemError(
            f"true on brokers {listed(protecting)}, not in {listed(without)}",
            "set zookeeper.set.acl=true: else everybody may change what the controllers write to ZooKeeper",
        )
    return "true on both sides" if protecting else "brokers don't protect znodes"


def login(findings: MigrationFindings) -> str:
    """Controllers can log in at the brokers' inter-broker listener where it wants SASL."""
    controllers, brokers = findings.sides
    unknown: NotRead | None = None
    for broker, configs in sorted(brokers.items()):
        name = inter_broker_name(configs)
        if not protocols_of(configs).get(name, "").startswith("SASL_"):
            continue
        mechanism = _mechanism(configs)
        key = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        for controller in controllers:
            other = _mechanism(controller.properties)
            if other != mechanism:
                raise ProblemError(
                    f"broker {broker} wants {mechanism}, {controller.file} logs in by {other}",
                    f"set sasl.mechanism.inter.broker.protocol={mechanism} on the controllers",
                )
            if controller.properties.get(key):
                continue
            if key in configs:
                raise ProblemError(f"{controller.file} has no {key}", "copy it from the brokers")
            # Both sides may have it in JAAS files, which no request shows.
            unknown = NotRead(
                f"neither broker {broker} nor {controller.file} has {key}",
                "set it on the controllers, or give their JVM a JAAS file with KafkaServer as the brokers' JVM has",
            )
    need_all(unknown)
    return "the controllers have what it takes"


def _mechanism(properties: Mapping[str, str]) -> str:
    return properties.get("sasl.mechanism.inter.broker.protocol", "").strip() or "GSSAPI"


def quorum_addresses(findings: MigrationFindings) -> str:
    """Somebody answers at every address of a controller that brokers or controllers name."""
    quorum = need(findings.quorum)
    if not quorum:
        raise ProblemError("none is set", "set controller.quorum.bootstrap.servers on controllers")
    dead = [address for address, sign in quorum.items() if sign != "answers"]
    if dead:
        raise ProblemError(
            f"nobody answers at {listed(dead)}",
            "start the controllers, which wait for the brokers, or correct controller.quorum.bootstrap.servers",
        )
    return f"{listed(quorum)} answer"


CHECKS = (
    Check("controllers: authorizer", authorizer),
    Check("controllers: super.users", super_users),
    Check("controllers: password.encoder.secret", encoder_secret),
    Check("controllers: delegation.token.secret.key", token_key),
    Check("controllers: zookeeper.set.acl", znode_acls),
    Check("controllers: login to the brokers", login),
    Check("controllers: quorum addresses", quorum_addresses),
)
"""In the order of their lines."""
