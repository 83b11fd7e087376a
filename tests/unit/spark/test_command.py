"""The command line of Spark's JVM: asked of Spark's launcher once, and not where Spark's scripts would heed more."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.spark.jvm import LIGHT, ClassArchive, find_launch, java_command

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"-Dx='a b' {LIGHT}",
    "spark.hidden": "secret",
}
_LAUNCHER = """#!/bin/sh
echo asked >> {asked}
printf '\\0\\n{java}\\0-cp\\0{home}/conf:{home}/jars/first.jar:{home}/jars/*\\0-Xmx1g\\0'
printf -- '--add-modules=jdk.incubator.vector\\0--add-opens=a b\\0'
printf 'org.apache.spark.deploy.SparkSubmit\\0pyspark-shell\\0'
"""


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    """A Spark whose launcher is a script."""
    home, java = tmp_path / "spark", tmp_path / "java"
    (home / "jars").mkdir(parents=True)
    for name in ("z", "first", "spark-mllib_2.13-4", "spark-launcher_2.13-4", "spark-catalyst_2.13-4"):
        (home / "jars" / f"{name}.jar").write_bytes(b"")
    java.write_text(_LAUNCHER.format(asked=tmp_path / "asked", java=java, home=home))
    java.chmod(0o700)
    return ClassArchive(tmp_path, "key", home, java)


def test_launcher_is_asked_once(archive: ClassArchive, tmp_path: Path) -> None:
    launch = find_launch(archive, SETTINGS)
    assert launch is not None
    names = [Path(file).name for file in launch.class_path]
    assert names == ["spark-catalyst_2.13-4.jar", "first.jar", "spark-launcher_2.13-4.jar", "z.jar"]
    assert launch.options == ["--add-opens=a b"]
    assert find_launch(archive, SETTINGS) == launch
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_command_line_shows_what_may_be_read(archive: ClassArchive) -> None:
    launch = find_launch(archive, SETTINGS)
    assert launch is not None
    command = java_command(launch, archive, SETTINGS, {"spark.shown": "a b"}, note=False)
    assert command[0] == str(archive.java)
    assert {"-Xmx1g", "-Dx=a b", *LIGHT.split()} <= set(command)
    assert command[-4:] == [
        "org.apache.spark.deploy.SparkSubmit",
        "--conf",
        "spark.shown=a b",
        "pyspark-shell",
    ]
    assert not any("secret" in word for word in command)


@pytest.mark.parametrize("name", ["PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS"])
def test_variables_of_the_scripts_are_left_to_them(
    archive: ClassArchive, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "-Dx=y")
    assert find_launch(archive, SETTINGS) is None


@pytest.mark.parametrize("name", ["spark.driver.extraClassPath", "spark.driver.extraJavaOptions"])
def test_settings_of_the_launcher_are_left_to_it(archive: ClassArchive, name: str) -> None:
    assert find_launch(archive, SETTINGS | {name: "-XX:+UseG1GC"}) is None


@pytest.mark.parametrize("answer", ["exit 1", "echo something else"])
def test_a_launcher_that_says_nothing_is_left_alone(archive: ClassArchive, answer: str) -> None:
    archive.java.write_text(f"#!/bin/sh\n{answer}\n")
    assert find_launch(archive, SETTINGS) is None


def test_a_damaged_answer_is_asked_for_again(archive: ClassArchive, tmp_path: Path) -> None:
    launch = find_launch(archive, SETTINGS)
    (kept,) = tmp_path.glob("*.launch")
    kept.write_text("[1")
    assert find_launch(archive, SETTINGS) == launch
