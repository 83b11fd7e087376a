"""The settings of a session for Delta tables, and of s3a for the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.spark.delta import EXTENSION, hadoop_options, session_conf, table_path
from kbackup.spark.jars import TABLE_JARS, spark_release, table_jars
from kbackup.store import S3Options, s3

PLACES = ("s3://lake/kafka",)
KEYS = S3Options(
    endpoint_url="http://127.0.0.1:9000", access_key_id="id", secret_access_key="secret", region="eu-west-1"
)


def a_spark(folder: Path, *jars: str) -> Path:
    """Return a folder as SPARK_HOME names it, with these jars."""
    (folder / "jars").mkdir()
    for jar in jars:
        (folder / "jars" / jar).touch()
    return folder


def test_the_release_of_spark_is_that_of_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_spark(tmp_path, "spark-core_2.13-4.0.5.jar", "spark-sql_2.13-4.0.5.jar")
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert spark_release() == "4.0.5"


def test_the_release_of_a_spark_without_jars_is_that_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.setenv("SPARK_HOME", str(a_spark(tmp_path)))
    assert spark_release() == pyspark.__version__


@pytest.mark.parametrize(
    ("release", "delta", "hadoop"),
    [
        ("4.0.1", "io.delta:delta-spark_4.0_2.13:4.4.0", "org.apache.hadoop:hadoop-aws:3.4.1"),
        ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0", "org.apache.hadoop:hadoop-aws:3.4.2"),
        ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0", "org.apache.hadoop:hadoop-aws:3.5.0"),
    ],
)
def test_each_spark_gets_its_own_jars(release: str, delta: str, hadoop: str) -> None:
    chosen = table_jars(release)
    assert chosen.packages({"file"}) == [delta]
    assert chosen.packages({"s3a"})[:2] == [delta, hadoop]


@pytest.mark.parametrize("release", TABLE_JARS)
def test_the_jars_of_each_spark_are_locked(release: str) -> None:
    chosen = TABLE_JARS[release]
    locked = {line.split()[1] for line in chosen.lock.read_text().splitlines()}
    modules = [package.split(":") for package in chosen.packages({"s3a"})]
    assert {f"{name}-{version}.jar" for _, name, version in modules} <= locked


def test_tables_are_refused_where_there_is_no_delta_for_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(a_spark(tmp_path, "spark-core_2.13-4.3.0.jar")))
    with pytest.raises(UsageError, match=r"there are no jars of Delta for Spark 4\.3\.0") as refused:
        session_conf({}, PLACES)
    assert refused.value.hint.startswith("use Spark 4.0, 4.1 or 4.2 ")
    assert session_conf({"spark.jars": "mine"}, PLACES)["spark.jars"] == "mine"


def test_tables_are_not_refused_where_spark_runs_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever called spark-submit has brought jars; `delta_session` says so where they are missing."""
    monkeypatch.setenv("SPARK_HOME", str(a_spark(tmp_path, "spark-core_2.13-4.3.0.jar")))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert session_conf({}, PLACES) == EXTENSION


def test_a_session_gets_what_it_does_not_bring() -> None:
    package = table_jars(spark_release()).delta_package
    plain = session_conf({"spark.executor.memory": "2g"}, ("/srv/lake",))
    assert plain["spark.jars.packages"] == package
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
