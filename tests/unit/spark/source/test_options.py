"""Options of a read: what they ask for, what is refused, and that secrets don't show."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import types

from kbackup.archive import layout
from kbackup.archive.segments.window import Window
from kbackup.config import load
from kbackup.errors import KbackupError, UsageError
from kbackup.spark.source import KbackupDataSource, columns_of
from kbackup.spark.source.options import OPTIONS, TYPES, request_of
from kbackup.store.crypt.kek import generate_key
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.browsing import encrypting

DOCS = Path(__file__).parents[4] / "infra" / "docs" / "spark-reading.md"


def test_nothing_but_the_archive() -> None:
    request = request_of({"path": "s3://b/p"})
    assert (request.archive, request.restore_point, request.starting) == ("s3://b/p", "latest", "earliest")
    assert request.columns == tuple(TYPES)
    assert request.topics.matches("any.thing")
    assert request.times == Window()
    assert request.ranges is None
    assert request.fail_on_data_loss


def test_everything() -> None:
    request = request_of(
        {
            "Archive": "s3://b/p",
            "path": "s3://b/p",
            "RESTOREPOINT": "7",
            "ranges": "orders:0:5-9,orders:0:7-12, orders:1:-3,clicks:0:4-",
            "fromTime": "2026-01-31T12:00:00Z",
            "totime": "1769860900000",
            "columns": "Offset, key,offset,headers",
            "includeHeaders": "false",
            "partitionBytes": "8MiB",
            "startingRestorePoint": "3",
            "failOnDataLoss": "False",
        }
    )
    assert request.ranges == {
        TopicPartition("orders", 0): ((5, 12),),
        TopicPartition("orders", 1): ((0, 3),),
        TopicPartition("clicks", 0): ((4, 2**63 - 1),),
    }
    assert request.times == Window(from_time=1769860800000, to_time=1769860900000)
    assert request.columns == ("offset", "key")
    assert (request.partition_bytes, request.starting, request.restore_point) == (8 << 20, "3", "7")
    assert not request.fail_on_data_loss


@pytest.mark.parametrize("names", [("restorePoint", "startingRestorePoint"), ("backup", "startingBackup")])
def test_former_names_of_options_work(names: tuple[str, str]) -> None:
    request = request_of({"path": "s3://b/p", names[0]: "7", names[1]: "3"})
    assert (request.restore_point, request.starting) == ("7", "3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a"}, "there is no option topic; did you mean topics?"),
        ({"source.sasl.password": "geheim"}, "there is no option source.sasl.password"),
        ({"archive": "a", "path": "b"}, "named twice"),
        ({"topics": "a", "topicPattern": "b"}, "leave one out"),
        ({"topics": "a", "ranges": "a:0:1-2"}, "leave topics out"),
        ({"topicPattern": "("}, "not a regular expression"),
        ({"ranges": "a:0"}, "option ranges: a:0 can't be used"),
        ({"ranges": "a:0:5-5"}, "option ranges: a:0:5-5 can't be used"),
        ({"fromTime": "yesterday"}, "option fromTime: yesterday can't be used"),
        ({"fromTime": "1769860800001", "toTime": "1769860800000"}, "is later than toTime"),
        ({"columns": "offset,valeu"}, "there is no column valeu"),
        ({"includeHeaders": "maybe"}, "give true or false"),
        ({"partitionBytes": "much"}, "give a size such as"),
    ],
)
def test_refused_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=r".*") as caught:
        request_of(options)
    assert message in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_topics() -> None:
    some = request_of({"topics": "orders, /clicks-[0-9]+/"}).topics
    assert [some.matches(name) for name in ("orders", "clicks-12", "clicks", "orders-2")] == [1, 1, 0, 0]
    pattern = request_of({"topicPattern": "a,b|c.*"}).topics
    assert [pattern.matches(name) for name in ("a,b", "cd", "a")] == [1, 1, 0]


def test_the_configuration_that_reaches_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, else the environment, else the file."""
    archive = tmp_path / "archive"
    key = tmp_path / "key"
    key.write_text(generate_key())
    make_archive(encrypting(FileStore(archive), tmp_path))
    store = request_of({"archive": str(archive), "encryption.key": f"file:{key}"}).store()
    assert b"kbackup" in store.get(layout.LATEST)
    file = tmp_path / "kbackup.toml"
    file.write_text(f'archive = "{archive}"\n[encryption]\nkey = "file:/nowhere"\n')
    monkeypatch.setenv("KBACKUP_ENCRYPTION_KEY", f"file:{key}")
    monkeypatch.setenv("KBACKUP_TRUST_OPTIONS", "1")
    store = request_of({"config": str(file)}).store()
    assert b"kbackup" in store.get(layout.LATEST)


def test_options_run_no_command_and_read_no_file_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the driver's environment allows them: then this runs `tee`, and sends a file to the endpoint."""
    monkeypatch.chdir(tmp_path)  # `tee` also writes the file that its argument names
    ran, secret, file = tmp_path / "ran", tmp_path / "secret", tmp_path / "kbackup.toml"
    secret.write_text("hunter2")
    file.write_text(f'[encryption]\nkey = "command:tee {ran}"\n')
    make_archive(encrypting(FileStore(tmp_path / "archive"), tmp_path))
    address = {"archive": str(tmp_path / "archive")}

    def outcome(options: dict[str, str]) -> str:
        try:
            request_of(options).store().get(layout.LATEST)
        except KbackupError as error:
            return error.message
        return "was read"

    command = address | {"Encryption.Key": f"command:tee {ran}"}
    configured = address | {"config": str(file)}
    reading = {"archive": "s3://bucket", "s3.endpoint_url": f"http://127.0.0.1:1/${{file:{secret}}}"}
    variable = {"archive": "s3://bucket", "s3.endpoint_url": "http://127.0.0.1:1/${env:HOME}"}
    for options in (command, configured, reading, variable):
        assert "is refused in options" in outcome(options)
    assert not ran.exists()
    assert request_of({"archive": "s3://bucket", "s3.profile": "$${file:/x}"}).settings[0].path == "s3.profile"

    monkeypatch.setenv("KBACKUP_TRUST_OPTIONS", "1")
    for options in (command, configured):
        assert "the key command tee" in outcome(options)
        assert ran.exists()
        ran.unlink()
    assert str(load(request_of(reading).settings).config.s3.endpoint_url).endswith("hunter2")


def test_secrets_don_t_show() -> None:
    request = request_of(
        {
            "archive": "s3://b",
            "s3.access_key_id": "id",
            "S3.Secret_Access_Key": "geheim",
            "encryption.key": "env:GEHEIM",
        }
    )
    assert "geheim" not in repr(request).lower()
    assert "geheim" not in repr(request.store()).lower()


def test_keys_that_can_t_be_used_name_their_option() -> None:
    with pytest.raises(UsageError, match=r"option s3\.part_size"):
        request_of({"archive": "s3://b", "s3.part_size": "much"}).store()
    with pytest.raises(UsageError, match=r"s3\.regoin"):
        request_of({"archive": "s3://b", "s3.regoin": "x"}).store()


def test_a_schema_of_the_user_s_own() -> None:
    source = KbackupDataSource({"archive": "/somewhere"})
    assert source.schema() == ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    some = {"offset": types.LongType(), "headers": types.ArrayType(header), "timestamp": types.TimestampType()}
    assert columns_of(types.StructType([types.StructField(*field) for field in some.items()])) == list(some)
    wrong = {
        "offset": types.IntegerType(),
        "value": types.StringType(),
        "nothing": types.StringType(),
        "headers": header,
    }
    for field in wrong.items():
        with pytest.raises(UsageError, match=f"an archive has no column {field[0]} of type"):
            columns_of(types.StructType([types.StructField(*field)]))


def test_every_option_is_in_the_docs() -> None:
    text = DOCS.read_text()
    undocumented = [name for name in OPTIONS if f"`{name}`" not in text]
    assert not undocumented, f"options that the document lacks: {undocumented}"
