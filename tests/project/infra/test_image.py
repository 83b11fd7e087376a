"""The image: what it copies is there and not left out, and its entrypoint starts what it should."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest

from kbackup.spark import session
from kbackup.spark.jars import spark_release, table_jars
from kbackup.spark.jvm import LOCK
from tests.project.infra.chart import workload
from tests.project.infra.files import INFRA, ROOT, config_of, spark_on_kubernetes

DOCKERFILE = (INFRA / "image" / "Dockerfile").read_text("utf-8")
ENTRYPOINT = INFRA / "image" / "entrypoint"
STATEMENTS = re.sub(r"\\\n\s*", "", DOCKERFILE)


def copied() -> set[str]:
    found = set(re.findall(r"--mount=type=bind,source=([^,]+),", STATEMENTS))
    for sources in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.*) \S+$", STATEMENTS, re.MULTILINE):
        found |= set(sources.split())
    return found


def test_hadolint_finds_nothing() -> None:
    """Nor shellcheck, which it runs over every RUN."""
    argv = [str(Path(sys.executable).with_name("hadolint")), str(INFRA / "image" / "Dockerfile")]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_copied_paths_exist_and_match_the_build_context() -> None:
    lines = (INFRA / "image" / "Dockerfile.dockerignore").read_text("utf-8").split()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert lines[0] == "*"
    assert copied() >= {"kbackup", "pyproject.toml", "requirements/run.txt", "tests/golden/java/archive"}
    missing = {path for path in copied() if not (ROOT / path).exists()}
    assert not missing, f"paths that the image copies and the tree lacks: {missing}"
    assert {re.sub(r"^requirements/.*", "requirements", path) for path in copied()} == allowed


def test_packages_are_locked() -> None:
    installs = re.findall(r"pip install ([^&\n]*)", STATEMENTS)
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-deps" in one for one in installs)


def test_data_files_of_the_package_are_copied() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, files = settings["project"], settings["tool"]["setuptools"]["data-files"]
    folders = {str(Path(pattern).parent) for patterns in files.values() for pattern in patterns}
    assert folders | {"kbackup", "pyproject.toml", project["readme"], *project["license-files"]} <= copied()
    assert f'org.opencontainers.image.licenses="{project["license"]}"' in DOCKERFILE


def test_python_and_version_are_those_of_the_project() -> None:
    """Only the base names a version of Python: no path has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = project["requires-python"]
    instructions = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    assert re.findall(r".*python:?\d.*", instructions) == [f"ARG BASE=python:{asked.removeprefix('>=')}-slim-bookworm"]
    assert re.findall(r" SPARK_HOME=(\S+)", instructions) == re.findall(r"&& ln -s .* (\S+)$", STATEMENTS, re.MULTILINE)
    assert f'org.opencontainers.image.version="{project["version"]}"' in instructions


def test_image_fetches_the_jars_that_an_export_to_s3_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    build = mock.Mock()
    monkeypatch.setattr(session, "build_session", build)
    (code,) = re.findall(r"^RUN python -c '([^']*)' && mv .*$", STATEMENTS, re.MULTILINE)
    exec(code, {})
    (_, conf, _), _ = build.call_args
    jars = table_jars(spark_release())
    assert conf["spark.jars.packages"].split(",") == jars.packages({"s3a"})
    assert conf[LOCK] == str(jars.lock)
    build.return_value.stop.assert_called_once()


def test_its_own_commands_parse() -> None:
    (verify,) = re.findall(r"archive kbackup (verify [^&\n]*)", STATEMENTS)
    assert config_of(verify.replace("'", "").split(), {}).archive == "/mnt/archive"


def start(tmp_path: Path, *arguments: str, **environ: str) -> list[str]:
    """Run the entrypoint with stand-ins, and return the command line that it starts."""
    for name in ("java", "kbackup"):
        stand_in = tmp_path / name
        stand_in.write_text('#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@"\n')
        stand_in.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | environ
    run = subprocess.run([ENTRYPOINT, *arguments], env=environ, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.split("\0")[:-1]


def test_entrypoint_is_kbackup(tmp_path: Path) -> None:
    assert start(tmp_path, "backup", "--topic", "/a b*/") == ["kbackup", "backup", "--topic", "/a b*/"]
    assert start(tmp_path) == ["kbackup"]


EXECUTOR = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@nightly.kbackup-driver.kbackup.svc:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-7",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "kbackup-exec-1",
}


def test_entrypoint_is_an_executor(tmp_path: Path) -> None:
    options = {f"SPARK_JAVA_OPT_{n}": f"-Dn={n} x" for n in range(11)}
    said = start(tmp_path, "executor", **EXECUTOR, **options)
    assert said[:12] == ["java", *(f"-Dn={n} x" for n in range(11))]  # in their order: 2 before 10
    assert said[12:16] == ["-Xms1g", "-Xmx1g", "-cp", "/opt/spark/jars/*"]
    assert said[16] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    flags = dict(zip(said[17::2], said[18::2], strict=True))
    assert set(flags.values()) == {v for k, v in EXECUTOR.items() if k not in ("SPARK_HOME", "SPARK_EXECUTOR_MEMORY")}
    assert flags["--podName"] == "kbackup-exec-1"
    bare = start(tmp_path, "executor", **EXECUTOR, SPARK_CLASSPATH="/more.jar")
    assert bare[1:5] == ["-Xms1g", "-Xmx1g", "-cp", "/more.jar:/opt/spark/jars/*"]


def test_entrypoint_knows_the_variables_and_flags_of_this_spark() -> None:
    text = ENTRYPOINT.read_text("utf-8")
    names = set(re.findall(r"SPARK_(?!HOME)[A-Z_]+|--[a-zA-Z-]+", text.partition("fi\n")[2]))
    assert len(names) == 10 + 7  # variables and flags
    (main,) = re.findall(r"org\.apache\.spark\.\S+", text)
    unknown = [name for name in (*names, main.replace(".", "/")) if name not in spark_on_kubernetes()]
    assert not unknown, f"names that Spark on Kubernetes does not have: {unknown}"


def test_ports_are_those_of_the_chart() -> None:
    used = [workload(name).container["ports"][0]["containerPort"] for name in ("page", "follow")]
    assert re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE) == [" ".join(map(str, used))]


def test_extras_that_the_image_has_are_locked() -> None:
    locked = (ROOT / "requirements" / "run.txt").read_text("utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        re.split(r"[<>=\[]", one)[0] for extra in ("azure", "gcs", "native", "schemas", "web") for one in extras[extra]
    }
    unlocked = {name for name in names if not re.search(rf"^{name}==", locked, re.MULTILINE)}
    assert not unlocked, f"packages without a locked version: {unlocked}"
