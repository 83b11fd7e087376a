"""The properties of Kafka clients: from Java's `.properties` files, with JAAS lines, to librdkafka's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kbackup.errors import UsageError

_BLANK = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes, name: str) -> dict[str, str]:
    """Return keys and values of a properties file (ISO 8859-1, as Java reads it); the last of equal keys wins.

    `name` stands in errors, which never show a value.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(data.decode("latin-1")):
        try:
            key = next(_KEY.finditer(line))
            values[_unescape(key[1])] = _unescape(line[key.end() :])
        except ValueError:
            raise UsageError(
                f"{name}: line {number} has a malformed escape", "write four hexadecimal digits after \\u"
            ) from None
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines, each with the number of its first line: without comments and blank lines, and with continued
    lines joined."""
    joined, first = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = raw.lstrip(_BLANK)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            # The last backslash is not escaped by another one: the line continues.
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != "u":
            return _LETTERS.get(code, code)
        if len(code) == 1:
            raise ValueError
        return chr(int(code[1:], 16))

    units = _ESCAPE.sub(replace, text)
    # Java's escapes are units of UTF-16: two of them make a character beyond the first plane.
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


# Read credentials from Java's `sasl.jaas.config`.


_TOKEN = re.compile(r"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_QUOTES = 'put values in double quotes: password="…"'
_PASSWORD_MODULES = ("PlainLoginModule", "ScramLoginModule")
_OTHER_MODULES = {
    "Krb5LoginModule": "Kerberos is not supported; log in by SCRAM, OAUTHBEARER or a client certificate",
    "OAuthBearerLoginModule": "set sasl.oauthbearer.method=oidc with sasl.oauthbearer.client.id, "
    "sasl.oauthbearer.client.secret and sasl.oauthbearer.token.endpoint.url instead, or kbackup.oauth.callback",
}
_CLIENT_CREDENTIALS = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_SUBJECT = "unsecuredLoginStringClaim_sub"
_LIFETIME = "unsecuredLoginLifetimeSeconds"


def jaas_credentials(text: str, where: str) -> dict[str, str]:
    """Return librdkafka's properties of a login: `sasl.username` and `sasl.password` of PLAIN or SCRAM, and
    `sasl.oauthbearer.…` of client credentials or of tokens that nobody signed.

    `where` stands in errors, the text never does."""
    module, options = _parse(text, where)
    name = module.rpartition(".")[2]
    if name == "OAuthBearerLoginModule":
        login = _oauth_login(options)
        if login is not None:
            return login
    if name not in _PASSWORD_MODULES:
        hint = _OTHER_MODULES.get(name, "logins by PlainLoginModule and ScramLoginModule can be used")
        raise UsageError(f"{where}: the login module {module} exists in Java only", hint)
    if options.get("tokenauth", "").lower() == "true":
        raise UsageError(f"{where}: delegation tokens can't be used", "use a SCRAM user with a password")
    if "username" not in options or "password" not in options:
        raise UsageError(f"{where}: no user name or no password in it", f'{name} required username="…" password="…";')
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _oauth_login(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return librdkafka's properties of a login by tokens; None if the options name neither kind of it."""
    if {"clientId", "clientSecret"} <= options.keys():
        login = {"sasl.oauthbearer.method": "oidc"}
        for java, ours in _CLIENT_CREDENTIALS.items():
            if java in options:
                login[ours] = options[java]
        return login
    subject = options.get(_SUBJECT)
    if not subject:
        return None
    principal = f"principal={subject}"
    if _LIFETIME in options:
        principal += f" lifeSeconds={options[_LIFETIME]}"
    return {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": principal}


def _parse(text: str, where: str) -> tuple[str, dict[str, str]]:
    """Return (login module, its options) of `module flag name=value ... ;`, a single entry."""
    text = text.strip()
    tokens = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise UsageError(f"{where}: a quote is not closed", _QUOTES)
        quoted = token[1] if token[1] is not None else token[2]
        if quoted is not None:
            tokens.append(re.sub(r"\\(.)", r"\1", quoted))
        else:
            tokens.append(token[3] or token[4])
        at = token.end()
    if len(tokens) < 3 or tokens[-1] != ";" or tokens.count(";") != 1:
        raise UsageError(f"{where}: not one login module that ends in a semicolon", "see Kafka's documentation")
    options = tokens[2:-1]
    names, signs, values = options[::3], options[1::3], options[2::3]
    if len(options) % 3 or any(sign != "=" for sign in signs):
        raise UsageError(f"{where}: its options are not name=value", _QUOTES)
    return tokens[0], dict(zip(names, values, strict=True))


# Properties of Kafka clients: what kbackup decides itself, and Java's client.properties in librdkafka's words.


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
_RESTORE_SETS_IT = "a restore sets it itself"
_NO_CONSUMER_GROUP = "kbackup joins no consumer group"
_COPIED_AS_THEY_ARE = "records are copied as they are"
_OPENSSL_CHOOSES = "OpenSSL chooses it"
_JAVA_CLIENT_ALONE = "it tunes the Java client"
_DROPPED = {
    **CONTROLLED,
    "acks": _RESTORE_SETS_IT,
    "retries": _RESTORE_SETS_IT,
    "delivery.timeout.ms": _RESTORE_SETS_IT,
    "transaction.timeout.ms": _RESTORE_SETS_IT,
    "max.poll.records": _NO_CONSUMER_GROUP,
    "max.poll.interval.ms": _NO_CONSUMER_GROUP,
    "session.timeout.ms": _NO_CONSUMER_GROUP,
    "heartbeat.interval.ms": _NO_CONSUMER_GROUP,
    "partition.assignment.strategy": _NO_CONSUMER_GROUP,
    "group.instance.id": _NO_CONSUMER_GROUP,
    "group.protocol": _NO_CONSUMER_GROUP,
    "auto.commit.interval.ms": _NO_CONSUMER_GROUP,
    "exclude.internal.topics": _NO_CONSUMER_GROUP,
    "key.deserializer": _COPIED_AS_THEY_ARE,
    "value.deserializer": _COPIED_AS_THEY_ARE,
    "key.serializer": _COPIED_AS_THEY_ARE,
    "value.serializer": _COPIED_AS_THEY_ARE,
    "interceptor.classes": _COPIED_AS_THEY_ARE,
    "partitioner.class": _COPIED_AS_THEY_ARE,
    "ssl.protocol": _OPENSSL_CHOOSES,
    "ssl.enabled.protocols": _OPENSSL_CHOOSES,
    "ssl.provider": _OPENSSL_CHOOSES,
    "ssl.keymanager.algorithm": _OPENSSL_CHOOSES,
    "ssl.trustmanager.algorithm": _OPENSSL_CHOOSES,
    "ssl.secure.random.implementation": _OPENSSL_CHOOSES,
    "buffer.memory": _JAVA_CLIENT_ALONE,
    "max.block.ms": _JAVA_CLIENT_ALONE,
    "default.api.timeout.ms": _JAVA_CLIENT_ALONE,
    "metric.reporters": _JAVA_CLIENT_ALONE,
    "metrics.num.samples": _JAVA_CLIENT_ALONE,
    "metrics.recording.level": _JAVA_CLIENT_ALONE,
    "metrics.sample.window.ms": _JAVA_CLIENT_ALONE,
    "auto.include.jmx.reporter": _JAVA_CLIENT_ALONE,
    "socket.connection.setup.timeout.max.ms": _JAVA_CLIENT_ALONE,
}
"""Properties that are left out, and why."""
_OIDC_LOGINS = {
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
}
"""Login handlers that Java needs for client credentials; librdkafka needs only `sasl.oauthbearer.method`."""
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----\s*", re.DOTALL)


class Client(NamedTuple):
    """librdkafka properties, and why other properties of the file were left out ("name: reason")."""

    properties: dict[str, str]
    notes: tuple[str, ...]


def load_client_properties(path: str) -> Client:
    """Read a file of Java client properties. `UsageError` for one that only Java has and that can't be left out."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {reason}", "name a readable client.properties") from error
    java = {name: value.strip() for name, value in parse_properties(data, path).items()}
    return translate(java, path)


def translate(java: dict[str, str], file: str) -> Client:
    """Return the properties of a Java client in librdkafka's words; a property with the same name in both stays."""
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
            hint = "remove it; what it does must be set by librdkafka's own properties"
            if "oauthbearer" in value.lower():
                hint = (
                    "set sasl.oauthbearer.method=oidc and its librdkafka properties in [source] or [target] instead, "
                    "or name a Python function by kbackup.oauth.callback"
                )
            raise UsageError(f"{where} names Java code, which can't be run here", hint)
        else:
            new_name = _RENAMED.get(name) or ALIASES.get(name) or name
            translated[new_name] = value
    properties = {name: normal_pem(value) for name, value in translated.items()}
    return Client(properties, tuple(notes))


def normal_pem(value: str) -> str:
    """Return PEM of one line (as properties files hold it) in lines of 64, as OpenSSL wants it; other text as it is."""

    def lines(match: re.Match[str]) -> str:
        body = re.sub(r"\s+", "", match[2])
        in_lines = [body[at : at + 64] for at in range(0, len(body), 64)]
        cut = "\n".join(in_lines)
        return f"-----BEGIN {match[1]}-----\n{cut}\n-----END {match[1]}-----\n"

    return _PEM.sub(lines, value)


def _trust(rest: dict[str, str], file: str) -> dict[str, str]:
    """Take the trust store out of `rest`, and return librdkafka's property of it. librdkafka reads PEM alone."""
    kind = rest.pop("ssl.truststore.type", "JKS").upper()
    location = rest.pop("ssl.truststore.location", "")
    # The password guards a JKS or PKCS12 file against changes, and hides nothing.
    rest.pop("ssl.truststore.password", None)
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
    """Take the key store out of `rest`, and return librdkafka's properties of it. A PEM or a PKCS12 file can be used, a
    JKS file can't."""
    location = rest.pop("ssl.keystore.location", "")
    by_name = "PKCS12" if location.endswith((".p12", ".pfx")) else "JKS"
    kind = rest.pop("ssl.keystore.type", by_name).upper()
    password = rest.pop("ssl.keystore.password", "")
    if not location:
        return {}
    if kind == "PEM":
        return {"ssl.certificate.location": location, "ssl.key.location": location}
    if kind == "PKCS12":
        store = {"ssl.keystore.location": location}
        if password:
            store["ssl.keystore.password"] = password
        return store
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


def _buffer(value: str, where: str) -> dict[str, str]:
    """Return the size of a buffer: Java uses -1 for the system's default, librdkafka 0."""
    name = where.rpartition(": ")[2]
    return {f"socket.{name}": "0" if value == "-1" else value}


def _endpoint_check(value: str, where: str) -> dict[str, str]:
    """Return how names in certificates are checked: Java uses an empty value for no check, librdkafka `none`."""
    return {"ssl.endpoint.identification.algorithm": value.lower() or "none"}


_SPECIAL: dict[str, Callable[[str, str], dict[str, str]]] = {
    "receive.buffer.bytes": _buffer,
    "send.buffer.bytes": _buffer,
    "sasl.jaas.config": jaas_credentials,
    "sasl.mechanism": _mechanism,
    "ssl.endpoint.identification.algorithm": _endpoint_check,
}
