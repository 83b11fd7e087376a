"""The questions. Each shows the present answer and changes the draft."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar, get_args

import click

from kbackup.cli.init.draft import ConfigDraft
from kbackup.cli.init.environment_file import NAME
from kbackup.cli.init.schedule import KINDS, Schedule, ScheduleKind, parse_at
from kbackup.errors import UsageError
from kbackup.store import registry

T = TypeVar("T")
W = TypeVar("W", bound=str)

_PROTOCOLS = {True: ("SSL", "SASL_SSL"), False: ("PLAINTEXT", "SASL_PLAINTEXT")}
"""By whether the brokers speak TLS."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_OAUTH = "source.sasl.oauthbearer"
_REGISTRY = "schema_registry"
Receiver = Literal["none", "chat", "json"]
RECEIVERS: tuple[Receiver, ...] = get_args(Receiver)
"""What takes notifications: the webhook of a chat, or one that takes the whole notification as JSON."""
_WEBHOOK = "env:WEBHOOK_URL"
_CHAT_BODY = '{"text": "kbackup $command on $host: $summary"}'
_REFERENCE = re.compile(r"\$?\{?(env|file):([^}]+)\}?")


def ask_cluster(draft: ConfigDraft, speaks_tls: Callable[[str], bool | None] | None) -> None:
    click.echo("\nThe cluster to back up", err=True)
    _ask_key(draft, "source.bootstrap.servers", "Brokers (host:port, with commas between)", required=True)
    protocols = _protocols(draft.text("source.bootstrap.servers"), speaks_tls)
    protocol = _ask_choice(draft, "source.security.protocol", "Security protocol", protocols)
    if protocol.endswith("SSL"):
        _ask_key(draft, "source.ssl.ca.location", "PEM file of the CA (empty: the system's certificates)", file=True)
    else:
        draft.remove_all("source.ssl.")
    if not protocol.startswith("SASL"):
        draft.remove_all("source.sasl.")
        return
    if _ask_choice(draft, "source.sasl.mechanism", "SASL mechanism", _MECHANISMS) == "OAUTHBEARER":
        draft.remove_all(("source.sasl.username", "source.sasl.password"))
        draft.put(f"{_OAUTH}.method", "oidc")
        _ask_key(draft, f"{_OAUTH}.token.endpoint.url", "URL of the token endpoint", required=True)
        _ask_key(draft, f"{_OAUTH}.client.id", "Client id", required=True)
        _ask_secret(draft, f"{_OAUTH}.client.secret", "env:KAFKA_CLIENT_SECRET")
        _ask_key(draft, f"{_OAUTH}.scope", "Scope (empty: none)")
        return
    draft.remove_all(_OAUTH)
    _ask_key(draft, "source.sasl.username", "User", required=True)
    _ask_secret(draft, "source.sasl.password", "env:KAFKA_PASSWORD")


def _protocols(servers: str, speaks_tls: Callable[[str], bool | None] | None) -> tuple[str, ...]:
    """Return the security protocols to choose from: the ones that the brokers speak, or all if that is not known."""
    tls = speaks_tls(servers) if speaks_tls is not None else None
    if tls is None:
        return _PROTOCOLS[False] + _PROTOCOLS[True]
    spoken = "TLS" if tls else "no TLS"
    click.echo(f"The brokers speak {spoken}.", err=True)
    return _PROTOCOLS[tls]


def ask_archive(draft: ConfigDraft) -> None:
    click.echo("\nThe archive", err=True)
    _ask_key(draft, "archive", f"Address ({registry.forms()})", required=True)
    asked = None
    # An invalid address is an error of the check that follows.
    with suppress(UsageError):
        asked = registry.kind_of(draft.text("archive"))
    draft.take_store_variables()
    for kind in registry.KINDS.values():
        if kind is not asked:
            draft.remove_all(f"{kind.section}.")
            continue
        for question in kind.questions:
            path = f"{kind.section}.{question.key}"
            if question.of and not draft.text(f"{kind.section}.{question.of}"):
                draft.put(path, "")
            elif question.secret:
                _ask_secret(draft, path, question.secret)
            else:
                _ask_key(draft, path, question.text)


def ask_selection(draft: ConfigDraft) -> None:
    click.echo(
        "\nWhat to back up: names or /regular expressions/, with commas between. '-' removes an answer.", err=True
    )
    _ask_key(draft, "backup.topics", "Topics (empty: all but internal ones)")
    _ask_key(draft, "backup.exclude_topics", "Topics to exclude")
    _ask_key(draft, "backup.groups", "Consumer groups (empty: all)")
    _ask_key(draft, "backup.exclude_groups", "Consumer groups to exclude")


def ask_registry(draft: ConfigDraft) -> None:
    click.echo("\nThe schema registry of the cluster, if it has one", err=True)
    _ask_key(draft, f"{_REGISTRY}.url", "URL of the schema registry (empty: none)")
    url = draft.text(f"{_REGISTRY}.url")
    if not url:
        draft.remove_all(f"{_REGISTRY}.")
        return
    if "https:" in url:
        _ask_key(draft, f"{_REGISTRY}.ca_bundle", "PEM file of the CA (empty: the usual certificates)", file=True)
    if draft.text(f"{_REGISTRY}.token"):
        return
    _ask_key(draft, f"{_REGISTRY}.user", "User of the schema registry (empty: none)")
    if draft.text(f"{_REGISTRY}.user"):
        _ask_secret(draft, f"{_REGISTRY}.password", "env:SCHEMA_REGISTRY_PASSWORD")
    else:
        draft.put(f"{_REGISTRY}.password", "")


def ask_notifications(draft: ConfigDraft) -> None:
    click.echo("\nA message after each bad run", err=True)
    present: Receiver = "none"
    if draft.text("notify.url"):
        present = "chat" if draft.text("notify.body") else "json"
    receiver = choose("Send it to a webhook of Slack, Mattermost or Teams (chat), or as JSON", present, RECEIVERS)
    put_receiver(draft, receiver)
    if receiver != "none":
        _ask_secret(draft, "notify.url", _WEBHOOK, "the URL of the webhook")


def put_receiver(draft: ConfigDraft, receiver: Receiver) -> None:
    """Set what notifications are sent as. The URL is that of the draft, or in the usual variable."""
    if receiver == "none":
        draft.remove_all("notify.")
        return
    if not draft.text("notify.url"):
        draft.put("notify.url", f"${{{_WEBHOOK}}}")
    if receiver == "json":
        draft.put("notify.body", "")
    elif not draft.text("notify.body"):
        draft.put("notify.body", _CHAT_BODY)


def ask_schedule(kind: ScheduleKind, at: str, image: str) -> Schedule:
    click.echo("\nThe nightly run", err=True)
    kind = choose("Run it by", kind, KINDS)
    moment = parse_at(at) if kind == "none" else _prompt("Time of the day", at, parse_at)
    if kind == "kubernetes":
        image = _prompt("Repository of kbackup's image", image or None, str.strip)
    return Schedule(kind, moment, image)


def _ask_key(draft: ConfigDraft, path: str, question: str, required: bool = False, file: bool = False) -> None:
    """Ask for the value of a key; '-' removes an optional one. A `file` must be there."""

    def put(answer: str) -> None:
        text = answer.strip()
        if text == "-" and not required:
            text = ""
        if file and text and not Path(text).is_file():
            raise UsageError(f"there is no file {text}", "name a readable file")
        draft.put(path, text)

    default = None if required else ""
    _prompt(question, draft.text(path) or default, put)


def _ask_choice(draft: ConfigDraft, path: str, question: str, choices: Sequence[str]) -> str:
    present = draft.text(path) or choices[0]
    # A value from --set that is no usual choice stays possible.
    known = list(choices)
    if present not in known:
        known.append(present)
    draft.put(path, choose(question, present, known))
    return draft.text(path)


def _ask_secret(draft: ConfigDraft, path: str, default: str, name_of_secret: str = "") -> None:
    """Ask where a secret is, by its key or another name. The value of a variable that is not set is asked for."""
    present = _REFERENCE.fullmatch(draft.text(path))
    label = name_of_secret or path.partition(".")[2]
    question = f"Where is {label} (env:NAME or file:/path)"
    if present:
        default = f"{present[1]}:{present[2]}"
    kind, name = _prompt(question, default, _parse_reference)
    draft.put(path, f"${{{kind}:{name}}}")
    if kind == "env" and not draft.environ.get(name):
        value = _prompt(f"{name} is not set here; its value, which is not shown", None, str, hide_input=True)
        draft.environ[name] = value


def _parse_reference(text: str) -> tuple[str, str]:
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            "the file holds no secrets", "write env:NAME for a variable, or file:/path for a file with the secret"
        )
    if match[1] == "env" and NAME.fullmatch(match[2]) is None:
        raise UsageError(f"{match[2]} can't be the name of a variable", "name it with letters, digits and underscores")
    return match[1], match[2]


def _prompt(question: str, default: str | None, parse: Callable[[str], T], *, hide_input: bool = False) -> T:
    """Ask on stderr, as stdout has data alone, until `parse` accepts the answer."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    answer: T = click.prompt(
        question, default=default, show_default=bool(default), value_proc=parsed, hide_input=hide_input, err=True
    )
    return answer


def choose(question: str, default: str, choices: Sequence[W]) -> W:
    """Ask for one of several words."""
    known = click.Choice(choices, case_sensitive=False)

    def parse(text: str) -> W:
        return known.convert(text.strip(), None, None)

    return _prompt(f"{question} ({', '.join(choices)})", default, parse)
