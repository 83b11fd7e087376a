"""`kbackup serve` through the command line: what it refuses, what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.archives import make_archive
from tests.support.printed import Kbackup
from tests.support.truth import in_archive, read_topic

FREE = ("--listen", "127.0.0.1:0")
START_SECONDS = 120.0


def first_line(process: subprocess.Popen[str]) -> str:
    """Return what the command prints first. A command that prints nothing for long is killed."""
    killing = threading.Timer(START_SECONDS, process.kill)
    killing.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    killing.cancel()
    return line


@contextmanager
def serving(*arguments: str, stop: int = signal.SIGINT) -> Iterator[tuple[dict[str, object], subprocess.Popen[str]]]:
    """Run the command as a process of its own; give its JSON document. It must end well, and at once."""
    argv = [sys.executable, "-m", "kbackup", "serve", *arguments, *FREE, "--json=line"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        line = first_line(process)
        assert line, process.stderr.read() if process.stderr else ""
        yield json.loads(line), process
        stopped = time.monotonic()
        process.send_signal(stop)
        assert process.wait(20) == 0
        assert time.monotonic() - stopped < 10
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_server_says_where_it_is_and_ends_at_once(root: str, stop: int) -> None:
    with serving(root, stop=stop) as (document, _):
        assert document["archive"] == root
        assert (document["restore_point"], document["topics"], document["partitions"]) == (2, 1, 3)
        truth = {tp.partition: records for tp, records in in_archive(open_store(root)).items() if tp.topic == "orders"}
        assert read_topic(str(document["bootstrap_servers"]), "orders") == truth


def test_an_encrypted_archive_is_served_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(generate_key())
    key = f"file:{tmp_path / 'key'}"
    store = open_store(str(tmp_path / "sealed"), key=key, key_class=layout.key_class)
    make_archive(store, copied=False)
    truth = {tp.partition: records for tp, records in in_archive(store).items() if tp.topic == "orders"}
    with serving(store.url, "--encryption-key", key) as (document, _):
        assert read_topic(str(document["bootstrap_servers"]), "orders") == truth


def test_an_encrypted_archive_without_its_key_is_refused(tmp_path: Path, kbackup: Kbackup) -> None:
    (tmp_path / "key").write_text(generate_key())
    store = open_store(str(tmp_path / "sealed"), key=f"file:{tmp_path / 'key'}", key_class=layout.key_class)
    make_archive(store, copied=False)
    assert "encrypted" in kbackup("serve", store.url, *FREE, code=12).err


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:9092", "broker.example.com:9092"])
def test_an_address_that_others_reach_is_refused_with_its_risk(root: str, listen: str, kbackup: Kbackup) -> None:
    err = kbackup("serve", root, "--listen", listen, code=2).err
    assert "without TLS and users, whoever reaches it reads every record" in err
    assert "--allow-plain accepts the risk" in err


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_address_that_is_none_is_refused(root: str, listen: str, kbackup: Kbackup) -> None:
    assert f"can't listen on '{listen}'" in kbackup("serve", root, "--listen", listen, code=2).err


def test_an_address_that_is_taken_is_named(root: str, kbackup: Kbackup) -> None:
    with serving(root) as (document, _):
        taken = str(document["bootstrap_servers"])
        err = kbackup("serve", root, "--listen", taken, code=2).err
    assert f"can't listen on {taken}: address already in use" in err


def test_an_archive_that_is_none_is_refused(tmp_path: Path, kbackup: Kbackup) -> None:
    assert "there is no archive at" in kbackup("serve", str(tmp_path), *FREE, code=10).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--topic", "order"), "there is no topic order in restore point 2"),
        (("--restore-point", "9"), "there is no restore point 9"),
        (("--follow", "--restore-point", "1"), "leave out --restore-point and --to-time, or --follow"),
        (("--to-time", "2001-01-01T00:00:00Z"), "is before the archive begins"),
        (("--memory", "1MiB"), "serve.memory_size"),
        (("--commits", "disk"), "serve.commits"),
    ],
)
def test_what_can_not_be_served_is_named(root: str, options: tuple[str, ...], words: str, kbackup: Kbackup) -> None:
    assert words in kbackup("serve", root, *FREE, *options, code=2).err


def test_metrics_count_what_was_sent(root: str) -> None:
    import urllib.request

    from scripts.dev.process import free_ports

    (port,) = free_ports(1)
    with serving(root, "--metrics-listen", f"127.0.0.1:{port}") as (document, _):
        read_topic(str(document["bootstrap_servers"]), "orders")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    assert 'kbackup_serve_requests_total{archive="' in text
    assert 'request="Fetch"' in text
