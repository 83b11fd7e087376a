"""Deliveries to a webhook: what is sent, what is tried again, and that no message shows the URL."""

from __future__ import annotations

import pytest

from kbackup.cli.common.notify import UndeliveredError, Webhook
from kbackup.errors import UsageError
from tests.support.webhook import webhook


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Webhook, "pause", 0.01)


def failure(hook: Webhook, seconds: float = 5) -> str:
    hook.seconds = seconds
    with pytest.raises(UndeliveredError) as raised:
        hook.deliver("{}")
    return str(raised.value)


def test_a_delivery_has_body_and_headers() -> None:
    with webhook() as fake:
        Webhook(fake.url, {"X-Token": "t"}).deliver('{"a": 1}')
    (request,) = fake.requests
    assert (request.path, request.json) == ("/hook/T0K3N?key=s3cret", {"a": 1})
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Token"] == "t"


def test_a_user_in_the_url_becomes_a_header() -> None:
    with webhook() as fake:
        Webhook(fake.url.replace("//", "//me:p%40ss@"), {}).deliver("{}")
    assert fake.requests[0].headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_a_busy_server_is_asked_again() -> None:
    with webhook(503, 429) as fake:
        Webhook(fake.url, {}).deliver("{}")
    assert len(fake.requests) == 3


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
        failure(Webhook(url, {"X-Token": "s3cret\nInjected: yes"})),
        failure(Webhook(url.replace("127.0.0.1", "no-such-host.invalid"), {}), 0.02),
    ]
    assert not [m for m in messages if "T0K3N" in m or "s3cret" in m]


@pytest.mark.parametrize(
    "url", ["hooks.example.com/T0K3N", "ftp://host/T0K3N", "https://", "https://host:T0K3N/", "https://[T0K3N"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"notify\.url is not the URL of a webhook") as raised:
        Webhook(url, {})
    assert "T0K3N" not in str(raised.value)
