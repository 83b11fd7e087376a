"""The command line of Spark's JVM: as Spark's launcher makes it, or left to Spark's scripts where they heed more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kbackup.spark.jvm import LIGHT, command_line, spark_home

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"-Dx='a b' {LIGHT}",
    "spark.hidden": "secret",
}
MAIN = "org.apache.spark.deploy.SparkSubmit"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark and a JVM that are files only."""
    (tmp_path / "jars").mkdir()
    for name in ("z", "spark-mllib_2.13-4", "spark-launcher_2.13-4", "spark-catalyst_2.13-4"):
        (tmp_path / "jars" / f"{name}.jar").write_bytes(b"")
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path


def is_left_to_scripts(home: Path, settings: dict[str, str]) -> bool:
    return command_line(home, settings, {})[0] == str(home / "bin" / "spark-submit")


def test_command_line_shows_what_may_be_read(home: Path) -> None:
    command = command_line(home, SETTINGS, {"spark.shown": "a b"})
    assert command[:2] == [f"{home}/jdk/bin/java", "-cp"]
    assert {"-Xmx1g", "-Dx=a b", *LIGHT.split()} <= set(command)
    assert command[-4:] == [MAIN, "--conf", "spark.shown=a b", "pyspark-shell"]
    assert not any("secret" in word for word in command)


def test_jars_of_most_classes_come_first_and_mllib_never(home: Path) -> None:
    files = command_line(home, SETTINGS, {})[2].split(os.pathsep)
    names = [Path(file).name for file in files]
    assert names == ["spark-catalyst_2.13-4.jar", "spark-launcher_2.13-4.jar", "z.jar"]


@pytest.mark.exhaustive
def test_the_options_are_those_of_sparks_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of Spark may have others: copy them."""
    spark = spark_home()
    (jar,) = (spark / "jars").glob("spark-launcher_*.jar")
    command = command_line(spark, SETTINGS | {"spark.driver.extraJavaOptions": LIGHT}, {})
    scala = jar.name.split("_")[1].split("-")[0]
    launcher = [command[0], "-cp", f"{spark}/jars/*", "org.apache.spark.launcher.Main", MAIN, "pyspark-shell"]
    environment = {**os.environ, "SPARK_HOME": str(spark), "SPARK_SCALA_VERSION": scala}
    printed = subprocess.run(launcher, env=environment, capture_output=True, check=True, text=True).stdout
    words = printed.lstrip("\0\n").split("\0")
    options = {word for word in words[3 : words.index(MAIN)] if not word.startswith("-Xmx")}
    ours = set(command[3 : command.index(MAIN)]) - {"-Xmx1g", *LIGHT.split()}
    assert ours == options - {"--add-modules=jdk.incubator.vector"}


@pytest.mark.parametrize("name", ["SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"])
def test_variables_of_the_scripts_are_left_to_them(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_left_to_scripts(home, SETTINGS)
    monkeypatch.setenv(name, "/etc/spark")
    assert is_left_to_scripts(home, SETTINGS)


def test_arguments_for_the_scripts_reach_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars 'a b.jar' pyspark-shell")
    command = command_line(home, SETTINGS, {"spark.shown": "a b"})
    assert command[1:] == ["--conf", "spark.shown=a b", "--jars", "a b.jar", "pyspark-shell"]


@pytest.mark.parametrize("name", ["spark.driver.extraClassPath", "spark.driver.extraJavaOptions"])
def test_settings_of_the_launcher_are_left_to_it(home: Path, name: str) -> None:
    assert is_left_to_scripts(home, SETTINGS | {name: "-XX:+UseG1GC"})


def test_a_conf_folder_and_a_missing_jvm_are_left_to_the_scripts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "conf").mkdir()
    assert is_left_to_scripts(home, SETTINGS)
    (home / "conf").rmdir()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert is_left_to_scripts(home, SETTINGS)
