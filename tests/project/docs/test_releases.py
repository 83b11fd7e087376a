"""The releases that documents name are those that the package, its table of jars and `make versions` have."""

from __future__ import annotations

import re
import tomllib

from kbackup.spark.jars import TABLE_JARS
from scripts.dev import tools
from scripts.versions.__main__ import KAFKAS, OLDEST_SPARK, SPARKS
from tests.project.docs.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DOCS = ROOT / "infra" / "docs"
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def documented(subject: str) -> list[str]:
    """Return the releases in the row of spark.md's table."""
    section = (DOCS / "spark.md").read_text("utf-8").partition("## Releases")[2].partition("\n## ")[0]
    rows = dict(_ROW.findall(section))
    return re.findall(r"\d+(?:\.\d+)*", rows[subject])


def minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def test_the_package_asks_for_the_releases_of_spark_that_are_documented() -> None:
    (asked,) = [each for each in PROJECT["dependencies"] if each.startswith("pyspark")]
    assert asked == f"pyspark>={OLDEST_SPARK},<5"
    first, oldest, *others = documented("Spark")
    assert (first, oldest) == (minor(OLDEST_SPARK), OLDEST_SPARK)
    assert [first, *others] == [minor(spark) for spark in SPARKS]


def test_tables_are_documented_for_each_spark_that_has_jars() -> None:
    assert documented("Spark with Delta tables") == [*TABLE_JARS]
    text = (DOCS / "delta.md").read_text("utf-8")
    for spark, jars in TABLE_JARS.items():
        assert f"| {spark} | `{jars.delta_package}` | `{jars.s3a_packages[0]}` |" in text


def test_commands_name_the_jars_of_the_newest_delta() -> None:
    newest = [*TABLE_JARS.values()][-1]
    text = (DOCS / "delta.md").read_text("utf-8")
    named = set(re.findall(r"--packages (io\.delta:\S+)", text))
    assert named == {newest.delta_package}


def test_the_package_has_the_pythons_that_are_documented() -> None:
    classified = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert documented("Python") == classified
    assert PROJECT["requires-python"] == f">={classified[0]}"
    assert set(classified) <= set(tools.PYTHONS)


def test_the_jdks_are_those_that_scripts_take() -> None:
    assert documented("JDK") == [str(jdk) for jdk in tools.JDKS]


def test_brokers_of_the_documented_ages_run_in_make_versions() -> None:
    oldest, newest = documented("brokers")
    tried = [release for title in KAFKAS for release in re.findall(r"\d\.\d", title)]
    assert (tried[0], tried[-1]) == (oldest, newest)
    broker = re.search(r'name="kafka_2.13" rev="(\d\.\d)', (ROOT / "scripts/dev/ivy.xml").read_text("utf-8"))
    assert broker is not None
    assert broker[1] == newest
