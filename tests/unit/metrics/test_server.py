"""The endpoints for metrics and health."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

from kbackup.errors import UsageError
from kbackup.metrics.registry import counted
from kbackup.metrics.server import Health, JointHealth, Server, parse_address

LINES = 'orders"} 1\nkbackup_success{x="\\'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_health_and_metrics_are_served() -> None:
    clock = Clock()
    health = Health(60, clock)
    counted.put("kbackup_restore_point", 7)
    with Server("127.0.0.1:0", health) as server:
        url = f"http://127.0.0.1:{server.port}"
        status, kind, body = get(f"{url}/metrics")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        assert re.search(r"^kbackup_restore_point\{.*\} 7\.0$", body, re.MULTILINE)
        assert get(f"{url}/healthz")[0] == 200
        clock.now = 61
        health.failed(f"source cluster did not answer\n{LINES}")
        status, _, body = get(f"{url}/healthz")
        assert status == 503
        assert "stale: no round has ended well for 61 s; last error: source cluster did not answer" in body
        assert body.count("\n") == 1
        health.well()
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/etc/passwd")[0] == 404
        with pytest.raises(UsageError, match="can't listen on"), Server(f"127.0.0.1:{server.port}", health):
            pytest.fail("two on one port")


def test_process_is_well_only_where_each_component_is() -> None:
    clock = Clock()
    joint = JointHealth(60, clock)
    take, apply = joint.add_component("take A"), joint.add_component("apply A->B")
    assert joint.answer() == (200, "take A: ok: 0 s\napply A->B: ok: 0 s\n")
    clock.now = 61
    apply.well()
    take.failed("source cluster did not answer")
    status, text = joint.answer()
    assert status == 503
    assert text.splitlines() == [
        "take A: stale: no round has ended well for 61 s; last error: source cluster did not answer",
        "apply A->B: ok: 0 s",
    ]
    take.well()
    assert joint.answer()[0] == 200


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("[::1]:1", ("::1", 1)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses(listen: str, address: tuple[str, int]) -> None:
    assert parse_address(listen) == address


@pytest.mark.parametrize("listen", ["", "9464", "host", "host:", "host:x", "host:70000", "host:-1"])
def test_invalid_addresses(listen: str) -> None:
    with pytest.raises(UsageError, match="can't listen on"):
        parse_address(listen)
