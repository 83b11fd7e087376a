"""Metadata logs that Kafka 3.9.1 and 4.3.1 wrote, with what their own DumpLogSegments prints of them.

They are what tests/interop/metadata_log makes with real clusters.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode
from pathlib import Path

import pytest

from kbackup.migrate.metadata_log.image import read_image, read_metadata_log
from tests.support.metadata_records import check_as_printed, check_encoding, check_snapshots, parse

_FOLDER = Path(__file__).parent / "metadata_log"
_RECORDS = {"kafka-3.9.1": 27, "kafka-4.3.1": 27}  # the number of kinds of records in the log of each release


@pytest.fixture(params=_RECORDS)
def log(request: pytest.FixtureRequest) -> Path:
    return _FOLDER / str(request.param)


def _files(log: Path) -> list[Path]:
    return sorted(path for path in log.iterdir() if path.suffix != ".txt")


def test_every_record_is_as_kafka_prints_it(log: Path) -> None:
    names = check_as_printed(_files(log), parse((log / "printed.txt").read_text()))
    assert len(names) == _RECORDS[log.name]


def test_every_batch_is_encoded_as_kafka_does(log: Path) -> None:
    check_encoding(_files(log))


def test_replay_comes_to_what_kafkas_own_snapshots_hold(log: Path, tmp_path: Path) -> None:
    assert check_snapshots(log, tmp_path) >= 2


def test_whole_log_is_read(log: Path) -> None:
    image = read_image(log)
    assert (image.torn, image.open_transaction, dict(image.unknown)) == (None, 0, {})
    assert sorted(image.topics.values())[-2:] == ["grown", "moved"]


def test_credentials_are_those_of_the_passwords(log: Path) -> None:
    users = read_metadata_log(log).scram_users or ()
    passwords = {"alice": "alice's", "b o%b": "p aäss%wörd"}
    assert [user.user for user in users] == sorted(passwords)
    for user in users:
        digest = user.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        salt, stored, server = (b64decode(text or "") for text in (user.salt, user.stored_key, user.server_key))
        salted = hashlib.pbkdf2_hmac(digest, passwords[user.user].encode(), salt, user.iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        assert hashlib.new(digest, client_key).digest() == stored
        assert hmac.digest(salted, b"Server Key", digest) == server
