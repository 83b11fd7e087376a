"""The settings of a session for Delta tables, and of s3a for the store."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kbackup.spark.delta import DELTA, EXTENSION, hadoop_options, session_conf, table_path
from kbackup.store import S3Options, s3

PLACES = ("s3://lake/kafka",)
KEYS = S3Options(
    endpoint_url="http://127.0.0.1:9000", access_key_id="id", secret_access_key="secret", region="eu-west-1"
)


def test_jars_are_those_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (pinned,) = project["optional-dependencies"]["delta"]
    assert DELTA[0].rpartition(":")[2] == pinned.rpartition("==")[2]


def test_a_session_gets_what_it_does_not_bring() -> None:
    plain = session_conf({"spark.executor.memory": "2g"}, ("/srv/lake",))
    assert plain["spark.jars.packages"] == DELTA[0]
    assert plain["spark.executor.memory"] == "2g"
    assert EXTENSION.items() <= plain.items()
    far = session_conf({}, PLACES)
    assert "hadoop-aws" in far["spark.jars.packages"]
    assert "software.amazon.awssdk:bundle" in far["spark.jars.excludes"]


@pytest.mark.parametrize("name", ["spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"])
def test_a_session_that_brings_jars_gets_no_others(name: str) -> None:
    given = session_conf({name: "mine", "spark.sql.extensions": "my.Extension"}, PLACES)
    assert {key for key in given if "jars" in key or "ClassPath" in key} == {name}
    assert given[name] == "mine"
    assert given["spark.sql.extensions"] == f"my.Extension,{EXTENSION['spark.sql.extensions']}"


def test_options_of_s3_become_hadoops() -> None:
    options = s3.hadoop_options(KEYS, PLACES[0], {})
    assert options["fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert options["fs.s3a.endpoint.region"] == "eu-west-1"
    assert options["fs.s3a.path.style.access"] == "true"
    assert options["fs.s3a.connection.ssl.enabled"] == "false"
    assert (options["fs.s3a.access.key"], options["fs.s3a.secret.key"]) == ("id", "secret")
    assert "fs.s3a.session.token" not in options
    assert hadoop_options({}, "/srv/lake") == {}


def test_the_environment_says_the_rest() -> None:
    options = s3.hadoop_options(
        S3Options(), PLACES[0], {"AWS_ENDPOINT_URL_S3": "https://store", "AWS_REGION": "us-west-2"}
    )
    assert (options["fs.s3a.endpoint"], options["fs.s3a.endpoint.region"]) == ("https://store", "us-west-2")
    assert options["fs.s3a.connection.ssl.enabled"] == "true"
    assert not [name for name in options if "key" in name]
    plain = s3.hadoop_options(S3Options(), PLACES[0], {})
    assert not {"fs.s3a.endpoint", "fs.s3a.endpoint.region"} & plain.keys()
    assert plain["fs.s3a.path.style.access"] == "false"


def test_credentials_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[lake]\naws_access_key_id = of-lake\naws_secret_access_key = hidden\naws_session_token = short\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    told = s3.hadoop_options(S3Options(profile="lake"), PLACES[0], {})
    assert told["fs.s3a.access.key"] == "of-lake"
    assert told["fs.s3a.session.token"] == "short"
    assert told["fs.s3a.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")


def test_paths_as_hadoop_writes_them() -> None:
    assert table_path("s3://lake/kafka") == "s3a://lake/kafka"
    assert table_path("/srv/my lake") == "file:/srv/my lake"
    assert table_path("file:///srv/my%20lake") == "file:/srv/my lake"
    assert table_path("lake") == f"file:{Path.cwd()}/lake"
