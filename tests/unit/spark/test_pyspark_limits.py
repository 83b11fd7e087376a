"""Limits of pyspark 4.1 for which kbackup reaches into it. A release without one fails here: remove what is named."""

from __future__ import annotations

import io
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, accumulators

from kbackup.spark.session import silence_ends


def _printed(server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the server of accumulators prints where its client's line ends."""
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    with socket.create_connection(server.server_address) as client:
        client.sendall(b"token")
    server.handle_request()
    return printed.getvalue()


def test_pyspark_4_1_prints_a_traceback_where_the_jvm_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = accumulators.UpdateRequestHandler
    with accumulators.AccumulatorTCPServer(("127.0.0.1", 0), handler, "token") as server:
        plain = _printed(server, monkeypatch)
        assert "EOFError" in plain, "this release prints none: remove `handle_error` from `silence_ends`"
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server))
        silence_ends(session)
        assert _printed(server, monkeypatch) == ""


def test_pyspark_4_1_holds_on_to_a_jvm_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: Any = SimpleNamespace(jvm="ended")
    another: Any = SimpleNamespace(jvm="another")
    monkeypatch.setattr(SparkContext, "_gateway", ended)
    SparkContext._ensure_initialized(gateway=another)
    reason = "this release takes another gateway: remove the class's attributes from `forget_jvm`"
    assert SparkContext._gateway is ended, reason
