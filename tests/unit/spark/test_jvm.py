"""The archive of Spark's classes: when there is one, and which files are taken for it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from kbackup.spark.jvm import ClassArchive, class_archive

Env = dict[str, str]


@pytest.fixture
def env(tmp_path: Path) -> Env:
    """A Spark and a JVM that are files only."""
    jars, java = tmp_path / "spark" / "jars", tmp_path / "jdk" / "bin" / "java"
    for folder in (jars, java.parent):
        folder.mkdir(parents=True)
    (jars / "spark-core.jar").write_bytes(b"classes")
    java.write_bytes(b"")
    java.chmod(0o700)
    return {
        "SPARK_HOME": str(tmp_path / "spark"),
        "JAVA_HOME": str(tmp_path / "jdk"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def found(env: Env) -> ClassArchive:
    archive = class_archive(env)
    assert archive is not None
    return archive


def test_a_whole_archive_is_used_and_any_other_is_not(env: Env) -> None:
    archive = found(env)
    assert archive.options(note=True)[-1].startswith("-XX:DumpLoadedClassList=")
    assert archive.options(note=False) == []
    (archive.folder / f"spark-{archive.key}-7.jsa").write_bytes(b"cut")
    (archive.folder / f"spark-{archive.key}.12.new").write_bytes(b"unfinished")
    (archive.folder / "spark-0123-5.jsa").write_bytes(b"other")
    assert archive.path() is None
    whole = archive.folder / f"spark-{archive.key}-5.jsa"
    whole.write_bytes(b"whole")
    assert archive.path() == whole
    assert archive.options(note=True)[-1] == f"-XX:SharedArchiveFile={whole}"


def test_another_jar_or_jvm_has_another_archive(env: Env) -> None:
    keys = {found(env).key}
    os.utime(Path(env["SPARK_HOME"], "jars", "spark-core.jar"), (1, 1))
    keys.add(found(env).key)
    Path(env["SPARK_HOME"], "jars", "another.jar").write_bytes(b"")
    keys.add(found(env).key)
    os.utime(Path(env["JAVA_HOME"], "bin", "java"), (1, 1))
    keys.add(found(env).key)
    assert len(keys) == 4


def test_there_is_none_where_classes_come_from_elsewhere(env: Env) -> None:
    assert class_archive({**env, "SPARK_CONF_DIR": "/etc/spark"}) is None
    assert class_archive({**env, "JAVA_HOME": "/nowhere"}) is None
    assert class_archive({**env, "SPARK_HOME": "/nowhere"}) is None
    Path(env["SPARK_HOME"], "conf").mkdir()
    assert class_archive(env) is None


def test_there_is_none_in_a_folder_that_others_may_write_to(env: Env) -> None:
    folder = found(env).folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert class_archive(env) is None


def test_there_is_none_where_no_folder_can_be_made(env: Env, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert class_archive({**env, "XDG_CACHE_HOME": str(tmp_path / "file")}) is None


def test_one_process_alone_writes_the_archive(env: Env, tmp_path: Path) -> None:
    """Its JVM is a script that writes what it was told into the archive."""
    java = Path(env["JAVA_HOME"], "bin", "java")
    java.write_text(
        '#!/bin/sh\nfor word; do case "$word" in -XX:SharedArchiveFile=*) echo "$@" > "${word#*=}";; esac; done\n'
    )
    archive = found(env)
    assert not archive.due
    noted = Path(archive.options(note=True)[-1].partition("=")[2])
    noted.write_text("java/lang/Object id: 0\n")
    assert archive.due
    with (archive.folder / f"spark-{archive.key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive.write(["-cp", "jars"])
        assert archive.path() is None
    archive.write(["-cp", "jars"])
    written = archive.path()
    assert written is not None
    assert {"-Xshare:dump", f"-XX:SharedClassListFile={noted}", "jars"} <= set(written.read_text().split())
    archive.forget_classes()
    assert sorted(file.suffix for file in archive.folder.iterdir()) == [".jsa", ".lock"]


def test_a_jvm_that_cannot_write_the_archive_leaves_nothing(env: Env) -> None:
    java = Path(env["JAVA_HOME"], "bin", "java")
    java.write_text("#!/bin/sh\nexit 1\n")
    archive = found(env)
    noted = Path(archive.options(note=True)[-1].partition("=")[2])
    noted.write_text("java/lang/Object id: 0\n")
    archive.write(["-cp", "jars"])
    archive.forget_classes()
    assert [file.suffix for file in archive.folder.iterdir()] == [".lock"]
