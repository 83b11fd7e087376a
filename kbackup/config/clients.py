"""Properties of Kafka clients: what kbackup decides itself, and Java's client.properties in librdkafka's
words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kbackup.config.jaas import jaas_credentials
from kbackup.config.properties import parse_properties
from kbackup.errors import UsageError

CONTROLLED = {
    "auto.offset.reset": "a backup goes by offsets and reports a gap as loss (backup.allow_loss)",
    "delivery.report.only.error": "a restore maps offsets by delivery reports",
    "enable.auto.commit": "a backup commits no offsets",
    "enable.idempotence": "a restore always produces idempotently (see restore.transactions)",
    "enable.partition.eof": "a backup needs it to see the end of a partition",
    "group.id": "a backup joins no consumer group; choose the groups to save by backup.groups",
    "isolation.level": "set backup.isolation_level instead",
    "transactional.id": "set restore.restore_id instead (or restore.transactions to go without)",
}
"""Properties on which correctness rests, and what to do instead of setting them."""

ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}
"""librdkafka's second names: one name each here, so that a flag wins over a file that used the other."""

_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
_OPENSSL = "OpenSSL chooses it"
_NO_GROUP = "kbackup joins no consumer group"
_AS_THEY_ARE = "records are copied as they are"
_JAVA = "it tunes the Java client"
_DROPPED = {
    **CONTROLLED,
    **dict.fromkeys(
        ("acks", "retries", "delivery.timeout.ms", "transaction.timeout.ms"), "a restore sets it itself"
    ),
    **dict.fromkeys(("max.poll.records", "max.poll.interval.ms", "session.timeout.ms"), _NO_GROUP),
    **dict.fromkeys(
        ("heartbeat.interval.ms", "partition.assignment.strategy", "group.instance.id"), _NO_GROUP
    ),
    **dict.fromkeys(("group.protocol", "auto.commit.interval.ms", "exclude.internal.topics"), _NO_GROUP),
    **dict.fromkeys(
        ("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"), _AS_THEY_ARE
    ),
    **dict.fromkeys(("interceptor.classes", "partitioner.class"), _AS_THEY_ARE),
    **dict.fromkeys(("ssl.protocol", "ssl.enabled.protocols", "ssl.provider"), _OPENSSL),
    **dict.fromkeys(("ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"), _OPENSSL),
    **dict.fromkeys(("ssl.secure.random.implementation",), _OPENSSL),
    **dict.fromkeys(("buffer.memory", "max.block.ms", "default.api.timeout.ms", "metric.reporters"), _JAVA),
    **dict.fromkeys(("metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms"), _JAVA),
    **dict.fromkeys(("auto.include.jmx.reporter", "socket.connection.setup.timeout.max.ms"), _JAVA),
}
_OIDC_LOGINS = {
    f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    for package in ("", "secured.")
}
"""Login handlers that Java needs for client credentials; librdkafka needs only `sasl.oauthbearer.method`."""
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----\s*", re.DOTALL)


class Client(NamedTuple):
    """librdkafka properties, and why other properties of the file were left out ("name: reason")."""

    properties: dict[str, str]
    notes: tuple[str, ...]


def load_client_properties(path: str) -> Client:
    """Reads a file of Java client properties; `UsageError` for what only Java has and can't be left out."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: {(error.strerror or str(error)).lower()}", "name a readable client.properties"
        ) from error
    java = {name: value.strip() for name, value in parse_properties(data, path).items()}
    return translate(java, path)


def translate(java: dict[str, str], file: str) -> Client:
    """Java client properties in librdkafka's words; what has the same name there passes as it is."""
    rest = dict(java)
    translated = _trust(rest, file) | _key(rest, file)
    notes = []
    for name, value in rest.items():
        where = f"{file}: {name}"
        if name in _DROPPED:
            notes.append(f"{where} is left out: {_DROPPED[name]}")
        elif name == "sasl.login.callback.handler.class" and value in _OIDC_LOGINS:
            continue
        elif name in _SPECIAL:
            translated |= _SPECIAL[name](value, where)
        elif name.endswith((".class", ".classes")) or name == "security.providers":
            raise UsageError(f"{where} names Java code, which can't be run here", _class_hint(value))
        else:
            translated[_RENAMED.get(name, ALIASES.get(name, name))] = value
    return Client({name: normal_pem(value) for name, value in translated.items()}, tuple(notes))


def normal_pem(value: str) -> str:
    """PEM within one line (as properties files hold it) in lines of 64 again, as OpenSSL wants it; other text
    as it is."""

    def lines(match: re.Match[str]) -> str:
        body = re.sub(r"\s+", "", match[2])
        cut = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
        return f"-----BEGIN {match[1]}-----\n{cut}\n-----END {match[1]}-----\n"

    return _PEM.sub(lines, value)


def _trust(rest: dict[str, str], file: str) -> dict[str, str]:
    """Takes the trust store out of `rest`; librdkafka reads PEM alone."""
    kind = rest.pop("ssl.truststore.type", "JKS").upper()
    location = rest.pop("ssl.truststore.location", "")
    rest.pop("ssl.truststore.password", None)  # guards a JKS or PKCS12 file against changes, hides nothing
    if not location:
        return {}
    if kind == "PEM":
        return {"ssl.ca.location": location}
    command = f"keytool -list -rfc -keystore {location} | sed -n '/-BEGIN/,/-END/p' > ca.pem"
    if kind == "PKCS12":
        command = f"openssl pkcs12 -in {location} -nokeys -out ca.pem"
    raise UsageError(
        f"{file}: ssl.truststore.location is a {kind} trust store, which only Java reads",
        f"make it PEM: `{command}`, and set ssl.truststore.type=PEM, ssl.truststore.location=ca.pem",
    )


def _key(rest: dict[str, str], file: str) -> dict[str, str]:
    """Takes the key store out of `rest`: PEM and PKCS12 files can be used, JKS can't."""
    location = rest.pop("ssl.keystore.location", "")
    by_name = "PKCS12" if location.endswith((".p12", ".pfx")) else "JKS"
    kind = rest.pop("ssl.keystore.type", by_name).upper()
    password = rest.pop("ssl.keystore.password", "")
    if not location:
        return {}
    if kind == "PEM":
        return {"ssl.certificate.location": location, "ssl.key.location": location}
    if kind == "PKCS12":
        return {"ssl.keystore.location": location} | ({"ssl.keystore.password": password} if password else {})
    raise UsageError(
        f"{file}: ssl.keystore.location is a {kind} key store, which only Java reads",
        f"make it PKCS12: `keytool -importkeystore -srckeystore {location} -destkeystore keystore.p12 "
        "-deststoretype PKCS12`, and set ssl.keystore.type=PKCS12, ssl.keystore.location=keystore.p12",
    )


def _mechanism(value: str, where: str) -> dict[str, str]:
    if value == "AWS_MSK_IAM":
        raise UsageError(
            f"{where} AWS_MSK_IAM exists in Java only",
            "use SCRAM or client certificates, or AWS's signer for Python by kbackup.oauth.callback",
        )
    return {"sasl.mechanism": value}


def _identification(value: str, where: str) -> dict[str, str]:
    """Java says empty where librdkafka says none."""
    return {"ssl.endpoint.identification.algorithm": value.lower() or "none"}


def _buffer(value: str, where: str) -> dict[str, str]:
    """Java says -1 where librdkafka says 0: the system's default."""
    return {"socket." + where.rpartition(": ")[2]: "0" if value == "-1" else value}


def _class_hint(value: str) -> str:
    if "oauthbearer" in value.lower():
        return (
            "set sasl.oauthbearer.method=oidc and its librdkafka properties in [source] or [target] instead, "
            "or name a Python function by kbackup.oauth.callback"
        )
    return "remove it; what it does must be set by librdkafka's own properties"


_SPECIAL: dict[str, Callable[[str, str], dict[str, str]]] = {
    "receive.buffer.bytes": _buffer,
    "send.buffer.bytes": _buffer,
    "sasl.jaas.config": jaas_credentials,
    "sasl.mechanism": _mechanism,
    "ssl.endpoint.identification.algorithm": _identification,
}
