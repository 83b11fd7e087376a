"""The variables of the shell that the answers used, and that a service's environment lacks unless a file has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kbackup.cli.init.draft import CLIENT_FILE, ConfigDraft
from kbackup.cli.init.environment_file import NAME
from kbackup.config.secrets import is_secret
from kbackup.errors import UsageError, without_credentials
from kbackup.store.registry import DIRECTORY, kind_of
from kbackup.util.text import printable

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
"""Certificates that OpenSSL, requests and boto3 trust."""

_OF_MACHINE = (
    *_PROXIES,
    *[name.upper() for name in _PROXIES],
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # Spark's own, and Java's.
    *(
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "SPARK_LOCAL_DIRS",
        "SPARK_LOCAL_IP",
        "SPARK_SUBMIT_OPTS",
        "SPARK_DIST_CLASSPATH",
    ),
    *("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_USER_NAME", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS"),
    *("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"),
    # Where Python and the loader find libraries, and where files go that don't stay.
    *("PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "XDG_CACHE_HOME"),
)
"""Variables that make a machine's programs work, whatever the answers are."""

_TEMPORARY = ("AWS_SESSION_TOKEN",)
"""Variables of credentials that expire within hours."""

_SECRET_NAME = re.compile(r"(^|_)KEY$")
"""Names of secrets, besides those that are secret as keys of the configuration."""


@dataclass(frozen=True)
class Variable:
    """A variable that the backup uses. `value` is None if it is not known here."""

    name: str
    value: str | None
    is_secret: bool

    @property
    def is_temporary(self) -> bool:
        return self.name in _TEMPORARY


def used_variables(draft: ConfigDraft, *, on_this_machine: bool = True) -> list[Variable]:
    """Return the variables that a backup with the answers of `draft` uses: those that the answers refer to, also if
    they are not set here; and those of the store and, for a backup `on_this_machine`, of the machine that are set.

    Raises `UsageError` for a name that no environment file takes."""
    referenced = draft.references()
    names = list(referenced)
    names += _of_store(draft)
    if on_this_machine:
        names += _OF_MACHINE
    if not _may_use_tls(draft):
        names = [name for name in names if name in referenced or name not in _CERTIFICATES]
    variables: dict[str, Variable] = {}
    for name in names:
        value = draft.environ.get(name) or None
        is_referenced = name in referenced
        if name in variables or (value is None and not is_referenced):
            continue
        if not (on_this_machine or is_referenced) and _is_file(value or ""):
            # A pod has a login and certificates of its own.
            continue
        if NAME.fullmatch(name) is None:
            raise UsageError(
                f"a service can't have the variable {printable(name)}", "name it with letters, digits and underscores"
            )
        if value is not None and not value.isascii():
            _check_text(name, value)
        is_hidden = referenced.get(name, False) or _hides(name, value or "")
        variables[name] = Variable(name, value, is_hidden)
    return list(variables.values())


def _is_file(value: str) -> bool:
    return value.startswith("/") and Path(value).exists()


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the value of the variable {name} is not UTF-8 text", "write it in UTF-8") from None


def _of_store(draft: ConfigDraft) -> Iterable[str]:
    address = draft.text("archive")
    try:
        kind = kind_of(address)
    except UsageError:
        # The trial of the archive names what is wrong with it.
        return ()
    section = f"{kind.section}."
    given = [path.removeprefix(section) for path in draft.settings if path.startswith(section)]
    return kind.variables(given)


def _may_use_tls(draft: ConfigDraft) -> bool:
    """Return whether the backup may check a certificate: of the store, the cluster, the registry or the webhook."""
    if CLIENT_FILE in draft.references() or "SSL" in draft.text("source.security.protocol").upper():
        return True
    if any("https://" in str(value) for value in draft.settings.values()):
        return True
    registry_and_webhook = [draft.text("schema_registry.url"), draft.text("notify.url")]
    try:
        kind = kind_of(draft.text("archive"))
    except UsageError:
        # The trial of the archive names what is wrong with it.
        return True
    if kind is not DIRECTORY:
        # Without an endpoint, the store is the provider's own, which answers by https alone.
        registry_and_webhook.append(draft.text(f"{kind.section}.endpoint_url") or "https://")
    # An address in a variable is known to the service alone.
    return any(address.startswith(("https://", "${")) for address in registry_and_webhook)


def _hides(name: str, value: str) -> bool:
    """Return whether the value of a variable is a secret, by its name or by the credentials that it holds."""
    if is_secret(name) or _SECRET_NAME.search(name):
        return True
    return without_credentials(value) != value


def files_of_this_machine(draft: ConfigDraft) -> list[str]:
    """Return the files that the answers name: a container has them only if they are mounted."""
    files: list[str] = []
    for path, value in draft.settings.items():
        if path in ("archive", "backup.topics", "backup.groups"):
            continue
        files += re.findall(r"\$\{file:([^}]*)\}", str(value))
        text = str(value).removeprefix("file:")
        if text.startswith("/") and Path(text).is_file():
            files.append(text)
    return sorted(set(files))
