"""Addresses of controllers, and whether controllers are alive."""

from __future__ import annotations

import socket

import pytest

from kbackup.errors import UsageError
from kbackup.jobs.migrate.readings import (
    logged_addresses,
    own_addresses,
    probe,
    quorum_addresses,
    split_address,
)


def test_addresses_of_a_quorum() -> None:
    assert quorum_addresses({"controller.quorum.bootstrap.servers": "c1:9093, c2:9093"}) == {
        "c1:9093",
        "c2:9093",
    }
    assert quorum_addresses({"controller.quorum.voters": "3000@c1:9093,3001@c2:9093,bad"}) == {
        "c1:9093",
        "c2:9093",
    }
    assert quorum_addresses({}) == set()


def test_addresses_of_a_controller() -> None:
    names = {"controller.listener.names": "CONTROLLER"}
    assert own_addresses({**names, "listeners": "CONTROLLER://c1:9093,OTHER://c1:1"}) == {"c1:9093"}
    assert own_addresses({**names, "listeners": "CONTROLLER://:9093"}) == set()
    assert own_addresses(
        {**names, "listeners": "CONTROLLER://0.0.0.0:9093", "advertised.listeners": "CONTROLLER://c2:9093"}
    ) == {"c2:9093"}


def test_addresses_of_a_log() -> None:
    registered = {"controllerId": 3000, "endPoints": [{"name": "CONTROLLER", "host": "c1", "port": 9093}]}
    assert list(logged_addresses([registered, {}])) == ["c1:9093"]


def test_signs_of_life() -> None:
    """A closed port of a machine that answers is a stopped controller; a name that leads nowhere proves nothing,
    unless the user knows. What answers is alive, whatever the user says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        alive = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as other:
            closed = f"127.0.0.1:{other.getsockname()[1]}"
        nowhere = "controller.invalid:9093"
        assert probe([alive, closed, nowhere], []) == {alive: "answers", closed: "stopped", nowhere: "silent"}
        assert probe([alive, nowhere], [alive, nowhere]) == {alive: "answers", nowhere: "stopped"}


def test_words_of_an_address() -> None:
    assert split_address("[::1]:9093") == ("::1", 9093)
    for address in ("c1", "c1:", ":9093", "c1:70000", "c1:x"):
        with pytest.raises(UsageError):
            split_address(address)
