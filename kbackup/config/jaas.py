"""Read credentials from Java's `sasl.jaas.config`."""

from __future__ import annotations

import re

from kbackup.errors import UsageError

_TOKEN = re.compile(r"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_QUOTES = 'put values in double quotes: password="…"'
_PASSWORD_MODULES = ("PlainLoginModule", "ScramLoginModule")
_OTHER_MODULES = {
    "Krb5LoginModule": "set sasl.kerberos.keytab and sasl.kerberos.principal instead; "
    "librdkafka must be built with GSSAPI (SCRAM or client certificates work everywhere)",
    "OAuthBearerLoginModule": "set sasl.oauthbearer.method=oidc with sasl.oauthbearer.client.id, "
    "sasl.oauthbearer.client.secret and sasl.oauthbearer.token.endpoint.url instead, or kbackup.oauth.callback",
}
_CLIENT_CREDENTIALS = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_SUBJECT, _LIFETIME = "unsecuredLoginStringClaim_sub", "unsecuredLoginLifetimeSeconds"


def jaas_credentials(text: str, where: str) -> dict[str, str]:
    """`sasl.username` and `sasl.password` of a PLAIN or SCRAM login, `sasl.oauthbearer.…` of a login by client
    credentials or by tokens that nobody signed; `where` stands in errors, the text never does."""
    module, options = _parse(text, where)
    name = module.rpartition(".")[2]
    if name == "OAuthBearerLoginModule" and (found := _tokens_of(options)):
        return found
    if name not in _PASSWORD_MODULES:
        hint = _OTHER_MODULES.get(name, "logins by PlainLoginModule and ScramLoginModule can be used")
        raise UsageError(f"{where}: the login module {module} exists in Java only", hint)
    if options.get("tokenauth", "").lower() == "true":
        raise UsageError(f"{where}: delegation tokens can't be used", "use a SCRAM user with a password")
    if "username" not in options or "password" not in options:
        raise UsageError(
            f"{where}: no user name or no password in it", f'{name} required username="…" password="…";'
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _tokens_of(options: dict[str, str]) -> dict[str, str]:
    """Empty where librdkafka has nothing like it."""
    if {"clientId", "clientSecret"} <= options.keys():
        named = {ours: options[java] for java, ours in _CLIENT_CREDENTIALS.items() if java in options}
        return {"sasl.oauthbearer.method": "oidc"} | named
    if subject := options.get(_SUBJECT):
        life = f" lifeSeconds={options[_LIFETIME]}" if _LIFETIME in options else ""
        return {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={subject}{life}",
        }
    return {}


def _parse(text: str, where: str) -> tuple[str, dict[str, str]]:
    """(login module, its options) of `module flag name=value ... ;`, a single entry."""
    tokens = _tokens(text, where)
    if len(tokens) < 3 or tokens[-1] != ";" or tokens.count(";") != 1:
        raise UsageError(
            f"{where}: not one login module that ends in a semicolon", "see Kafka's documentation"
        )
    options = tokens[2:-1]
    if len(options) % 3 or any(sign != "=" for sign in options[1::3]):
        raise UsageError(f"{where}: its options are not name=value", _QUOTES)
    return tokens[0], dict(zip(options[::3], options[2::3], strict=True))


def _tokens(text: str, where: str) -> list[str]:
    values, at, text = [], 0, text.strip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise UsageError(f"{where}: a quote is not closed", _QUOTES)
        quoted = token[1] if token[1] is not None else token[2]
        values.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else token[3] or token[4])
        at = token.end()
    return values
