"""Notifications: what is sent of which result, what is tried again, and that no message shows the URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.models import Loss, Totals
from kbackup.cli import main
from kbackup.cli.backup import RoundReporter
from kbackup.cli.common.command_context import CommandContext, FlagValues, load_config
from kbackup.cli.common.notify import Notifier, RequestBody, UndeliveredError, Webhook, notification_of
from kbackup.cli.common.output import Reporter
from kbackup.config import Setting, SettingOrigin
from kbackup.errors import EXIT_LOSS, CorruptError, UnreachableError, UsageError
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.finding_kinds import loss_finding
from kbackup.util.times import now
from tests.support.local_http import Quiet, serving
from tests.support.printed import Kbackup
from tests.support.verifications import SEGMENT


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class FakeWebhook:
    """`answers` are the codes of the next answers; then 204."""

    server: str = ""
    answers: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.server}/hook/T0K3N?key=s3cret"


@contextmanager
def webhook(*answers: int) -> Iterator[FakeWebhook]:
    fake = FakeWebhook(answers=[*answers])

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fake.requests.append(Request(self.path, dict(self.headers), body))
            code = fake.answers.pop(0) if fake.answers else 204
            self.send_response(code)
            if code in (301, 302):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(Handler) as fake.server:
        yield fake


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Webhook, "pause", 0.01)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWebhook]:
    with webhook() as fake:
        monkeypatch.setenv("KBACKUP_NOTIFY_URL", fake.url)
        yield fake


def test_a_failed_run_sends_its_report(mine: str, fake: FakeWebhook, kbackup: Kbackup) -> None:
    (Path(mine) / SEGMENT).unlink()
    printed = kbackup("verify", mine, "--quick", "-q", "--json", code=13).json
    (request,) = fake.requests
    sent = request.json
    assert (sent["event"], sent["command"], sent["exit_code"]) == ("failure", "verify", 13)
    assert (sent["archive"], sent["error"]) == (mine, None)
    assert sent["summary"].startswith(f"{mine}: 1 finding; ")
    assert {**sent["report"], "exit_code": 13} == printed, "the report that is printed"


def test_an_error_sends_its_message_and_hint(tmp_path: Path, fake: FakeWebhook, kbackup: Kbackup) -> None:
    nothing = str(tmp_path / "none")
    kbackup("verify", nothing, "--quick", code=10)
    sent = fake.requests[0].json
    assert (sent["error"]["type"], sent["report"]) == ("NoArchiveError", None)
    assert sent["summary"] == f"there is no archive at {nothing}; check the address"


@pytest.mark.parametrize(("on", "requests"), [("failure,loss", 0), ("success", 1)])
def test_success_is_sent_where_it_is_asked_for(
    mine: str, fake: FakeWebhook, kbackup: Kbackup, on: str, requests: int
) -> None:
    kbackup("verify", mine, "--quick", "--set", f"notify.on={on}")
    assert [request.json["event"] for request in fake.requests] == ["success"] * requests


def test_a_finding_of_status_is_sent_as_loss(root: str, fake: FakeWebhook, kbackup: Kbackup) -> None:
    kbackup("status", root, code=3)
    sent = fake.requests[0].json
    assert (sent["event"], sent["report"]["level"]) == ("loss", "critical")
    assert sent["summary"].startswith("the newest restore point, 2, is ")


def test_the_summary_of_a_loss_begins_with_the_losses(mine: str, fake: FakeWebhook, kbackup: Kbackup) -> None:
    (Path(mine) / SEGMENT).unlink()
    kbackup("repair", mine, "--confirm", code=3)
    sent = fake.requests[0].json
    assert sent["summary"].startswith(f"{sent['warnings'][0]}; {mine}: ")
    assert sent["warnings"][0].startswith("loss: ")


def test_a_summary_names_losses_before_other_warnings(fake: FakeWebhook) -> None:
    reporter = Reporter()
    reporter.warning("the log grows", "loss: is only what this warning begins with")
    reporter.losses(["offsets 1 to 2"])
    reporter.findings(["topic clicks is not restored", loss_finding("offsets 3 to 4")])
    reporter.line("3 records")

    Notifier(load_config(FlagValues()).config, "restore").run_ended(EXIT_LOSS, reporter, None)
    sent = fake.requests[0].json
    assert sent["summary"] == "loss: offsets 1 to 2; loss: offsets 3 to 4; the log grows; and 2 more; 3 records"


@pytest.mark.parametrize(
    "line", ["list", "info", "expire --keep-last 9", "status --nagios", "restore --dry-run", "label 1 x"]
)
def test_commands_that_show_or_plan_send_nothing(mine: str, fake: FakeWebhook, line: str) -> None:
    main([*line.split(), "-a", mine, "--set", "notify.on=failure,loss,success"])
    assert fake.requests == []


def test_a_template_makes_the_body(
    mine: str, fake: FakeWebhook, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBACKUP_NOTIFY_BODY", '{"text": "$event of $command: $summary", "all": $notification}')
    monkeypatch.setenv("KBACKUP_NOTIFY_HEADERS", "Authorization=Bearer x")
    (Path(mine) / SEGMENT).unlink()
    kbackup("verify", mine, "--quick", code=13)
    (request,) = fake.requests
    assert request.json["text"].startswith(f"failure of verify: {mine}: 1 finding")
    assert request.json["all"]["report"]["findings"][0]["file"] == SEGMENT
    assert request.headers["Authorization"] == "Bearer x"


def test_texts_in_a_template_are_escaped() -> None:
    error = CorruptError('a "quoted" \\ file\nof two lines and \x1b', "don't $panic")
    made = notification_of("backup", "s3://b/a", 13, error=error, warnings=("one", "two"))
    body = RequestBody('{"text": "$summary", "w": "${warnings}", "cost": "$$5"}').render(made)
    assert json.loads(body) == {"text": str(error), "w": "one\ntwo", "cost": "$5"}


@pytest.mark.parametrize(
    "template",
    [
        *('{"text": $summary}', '{"a": "$nothing"}', "not json", '{"a": "$"}'),
        *('{"a": "$report"}', '{"code": 1$summary}', "[1, 2$warnings]"),  # JSON while there is nothing to tell
    ],
)
def test_a_template_that_makes_no_json_is_refused(
    root: str, fake: FakeWebhook, kbackup: Kbackup, template: str, tmp_path: Path
) -> None:
    kbackup("verify", root, "--quick", "--set", f"notify.body={template}", code=2)
    file = tmp_path / "kbackup.toml"
    file.write_text(f"notify.body = {json.dumps(template)}\n")
    assert "notify.body makes no JSON" in kbackup("config", "--config", str(file), code=2).err
    file.write_text("""notify.body = '{"all": $notification}'\n""")
    kbackup("config", "--config", str(file))
    assert fake.requests == []


@pytest.mark.parametrize("codes", [(404,), (500,) * 1000])
def test_a_failed_delivery_changes_no_result(
    mine: str, fake: FakeWebhook, codes: Any, tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Webhook, "seconds", 0.05)
    fake.answers += codes
    file = tmp_path / "kbackup.prom"
    printed = kbackup("verify", mine, "--quick", "--set", "notify.on=success", "--metrics-file", str(file))
    assert "the webhook of notify.url took no notification: it answered HTTP" in printed.err
    assert 'kbackup_notifications_total{archive="' in file.read_text()
    assert 'result="failed"} 1.0' in file.read_text()


def test_no_output_shows_the_secrets(mine: str, fake: FakeWebhook, kbackup: Kbackup) -> None:
    headers = ["--set", "notify.headers.Authorization=Bearer hush"]
    fake.answers += [400]
    verified = kbackup("verify", mine, "--quick", "--debug", "--set", "notify.on=success", *headers)
    shown = "".join((*verified, *kbackup("config", "--set", f"notify.url={fake.url}", *headers)))
    assert "notify.headers.Authorization" in shown
    for secret in ("T0K3N", "s3cret", "hush"):
        assert secret not in shown


# Long-running commands notify of incidents, and not of each round.


DOWN = UnreachableError("the source can't be reached", "check the network")


def rounds(fake: FakeWebhook, **keys: object) -> RoundReporter:
    settings = {"notify.url": fake.url, "notify.on": "failure,loss,success", **keys}
    flags = [Setting(path, value, SettingOrigin("flag", "--set")) for path, value in settings.items()]
    loaded = load_config(FlagValues(settings=flags))
    return RoundReporter(CommandContext(loaded, Reporter(), notifier=Notifier(loaded.config, "backup")), None)


def with_losses(*messages: str) -> BackupReport:
    losses = tuple(Loss(kind="retention", topic="orders", message=message) for message in messages)
    totals = Totals(topics=1, partitions=1, segments=1, records=1, bytes=1, stored_bytes=1, groups=0)
    return BackupReport(7, 6, now(), "s3://b/a", totals, (), losses, ())


def sent(fake: FakeWebhook) -> list[tuple[str, str]]:
    return [(request.json["event"], request.json["summary"]) for request in fake.requests]


def test_failed_rounds_are_one_incident(fake: FakeWebhook) -> None:
    reporter = rounds(fake)
    for _ in range(2):
        reporter.record_success()
        reporter.failed(DOWN, 1)
        reporter.failed(DOWN, 2)
    reporter.record_success()
    reporter.record_success()
    failed = ("failure", "the source can't be reached; check the network")
    assert sent(fake) == [failed, ("success", "the rounds succeed again")] * 2


def test_losses_of_a_round_are_sent(fake: FakeWebhook) -> None:
    rounds(fake).committed(with_losses("offsets 1 to 2 are lost", "offsets 3 to 4 are lost"))
    rounds(fake).committed(with_losses())
    rounds(fake, **{"backup.allow_loss": True}).committed(with_losses("offsets 5 to 6 are lost"))
    assert sent(fake) == [("loss", "loss: offsets 1 to 2 are lost")]
    document = fake.requests[0].json
    assert (len(document["warnings"]), document["report"]["restore_point"]) == (2, 7)


def test_warnings_are_shown_once(fake: FakeWebhook, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = rounds(fake)
    capsys.readouterr()
    for offline in ((), ("orders-1", "orders-2"), ("orders-1", "orders-2"), ("orders-2",), ()):
        texts = ("no ACLs", *(f"no leader: {', '.join(offline)}" for _ in offline[:1]))
        reporter.committed(replace(with_losses(), warnings=texts, offline=offline))
    shown = [line for line in capsys.readouterr().err.splitlines() if "restore point 7" not in line]
    assert shown == [
        "warning: no ACLs",
        "warning: no leader: orders-1, orders-2",
        "warning: no leader: orders-2",
        "partitions that have a leader again: orders-1",
        "partitions that have a leader again: orders-2",
    ]


# Deliveries to a webhook: what is sent, what is tried again, and that no message shows the URL.


def failure(hook: Webhook, seconds: float = 5) -> str:
    hook.seconds = seconds
    with pytest.raises(UndeliveredError) as raised:
        hook.deliver("{}")
    return str(raised.value)


def test_a_delivery_has_body_and_headers_and_a_busy_server_is_asked_again() -> None:
    with webhook(503, 429) as fake:
        Webhook(fake.url.replace("//", "//me:p%40ss@"), {"X-Token": "t"}).deliver('{"a": 1}')
    assert len(fake.requests) == 3
    for request in fake.requests:
        assert (request.path, request.json) == ("/hook/T0K3N?key=s3cret", {"a": 1})
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["X-Token"] == "t"
        assert request.headers["Authorization"] == "Basic bWU6cEBzcw==", "of the URL"


@pytest.mark.parametrize("code", [400, 404, 302])
def test_a_refusal_is_final(code: int) -> None:
    with webhook(code) as fake:
        assert f"it answered HTTP {code}; check notify.url" in failure(Webhook(fake.url, {}))
    assert len(fake.requests) == 1


def test_attempts_end_in_time() -> None:
    with webhook(*[500] * 1000) as fake:
        assert "HTTP 500" in failure(Webhook(fake.url, {}), 0.05)
    assert len(fake.requests) > 1


def test_no_message_shows_the_url() -> None:
    with webhook() as fake:
        url = fake.url
    messages = [
        failure(Webhook(url, {}), 0.02),
        failure(Webhook(url.replace("127.0.0.1", "no-such-host.invalid"), {}), 0.02),
    ]
    assert not [m for m in messages if "T0K3N" in m or "s3cret" in m]


_NEITHER = "it begins neither with https:// nor with http://"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("hooks.example.com/T0K3N", _NEITHER),
        ("T0K3N://host/", _NEITHER),
        ("ftp://host/T0K3N", "it begins with ftp://"),
        ("https://", "it has no host"),
        ("https://host:T0K3N/", "its host or port is invalid"),
        ("https://[T0K3N", "its host or port is invalid"),
        ("https://host/T0 K3N", "it has a blank or another character of no URL"),
    ],
)
def test_other_addresses_are_refused_by_config_and_check(url: str, why: str, tmp_path: Path, kbackup: Kbackup) -> None:
    file = tmp_path / "kbackup.toml"
    file.write_text(f"archive = {json.dumps(str(tmp_path / 'a'))}\n[notify]\nurl = {json.dumps(url)}\n")
    for command in ("config", "check"):
        err = kbackup(command, "--config", str(file), code=2).err
        assert err.startswith(f"kbackup: notify.url is not the URL of a webhook: {why}\nhint: write it as https://")
        assert "t0k3n" not in err.lower()


def test_a_header_of_two_lines_is_refused() -> None:
    with pytest.raises(UsageError, match=r"notify\.headers\.X-Token has a control character") as raised:
        Webhook("https://host/", {"X-Token": "s3cret\nInjected: yes"})
    assert "s3cret" not in str(raised.value)
