"""Jars that tests need and Spark does not bring: resolved by the Ivy that pyspark brings, locked by their SHA-256.

`kafka-jars.sha256` is the broker with its tools, `mirror-jars.sha256` MirrorMaker 2, `zookeeper-jars.sha256` ZooKeeper
and the last Kafka that runs with it, `old-jars.sha256` the oldest Kafka that kbackup serves, `apicurio-jars.sha256` a
schema registry, `serdes-jars.sha256` its Java clients, `yarn-jars.sha256` YARN; Delta with s3a is as
`kbackup.spark.jars` names and locks it for users, for each release of Spark.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from kbackup.spark.jars import LEFT_OUT, TABLE_JARS, TableJars, spark_release, table_jars
from scripts.dev import cache, tools

_HERE = Path(__file__).parent
BETWEEN = ("3.3", "4.0")
"""Releases of Kafka between those of the tests, for `make versions`."""
_LABELS = ("mirror", "zookeeper", "old", "apicurio", "serdes", "yarn", *(f"kafka-{release}" for release in BETWEEN))
_MODULES = {label: _HERE / f"ivy-{label}.xml" for label in _LABELS}
_MODULES["kafka"] = _HERE / "ivy.xml"
_DELTA = {f"delta-{spark}": jars for spark, jars in TABLE_JARS.items()}
LOCKS = {label: _HERE / f"{label}-jars.sha256" for label in _MODULES}
LOCKS |= {label: jars.lock for label, jars in _DELTA.items()}


@functools.cache
def _jars(label: str) -> Path:
    lines = (line.split() for line in LOCKS[label].read_text().splitlines())
    sums = {name: digest for digest, name in lines}

    def fill(folder: Path) -> None:
        _resolve(label, folder)
        cache.check_sums(folder, sums)

    name = f"{label}-{hashlib.sha256(LOCKS[label].read_bytes()).hexdigest()[:12]}"
    folder = cache.entry(name, fill)
    cache.check_sums(folder, sums)
    return folder


kafka_jars = functools.partial(_jars, "kafka")
"""The folder with exactly the locked jars of the broker, with Kafka's tools, Kafka Streams and Java clients; fetched on
first use (50 MB)."""

mirror_jars = functools.partial(_jars, "mirror")
"""MirrorMaker 2 with its clients and formatters (32 MB)."""

zookeeper_jars = functools.partial(_jars, "zookeeper")
"""ZooKeeper 3.8, Kafka 3.9 with its tools, and the exporter of JMX metrics (49 MB)."""

old_jars = functools.partial(_jars, "old")
"""Kafka 2.8 (34 MB), which runs with ZooKeeper."""

yarn_jars = functools.partial(_jars, "yarn")
"""YARN's ResourceManager and NodeManager (80 MB)."""

between_jars: dict[str, Callable[[], Path]] = {
    release: functools.partial(_jars, f"kafka-{release}") for release in BETWEEN
}
"""The brokers of `BETWEEN`, each of which is fetched on first use (40 MB)."""


def delta_jars() -> Path:
    """Delta and s3a for the installed Spark (22 MB)."""
    return _jars(f"delta-{table_jars(spark_release()).spark}")


serdes_jars = functools.partial(_jars, "serdes")
"""Apicurio's Java serializers and deserializers of Avro, Protobuf and JSON Schema, with what they need (62 MB).

Confluent's own are not in the public repository."""


@functools.cache
def apicurio() -> Path:
    """The folder of Apicurio Registry, unpacked; its archive is fetched on first use (158 MB)."""
    digest, name = LOCKS["apicurio"].read_text().split()

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
            _resolve("apicurio", Path(fetched))
            cache.check_sums(Path(fetched), {name: digest})
            with tarfile.open(Path(fetched) / name) as archive:
                archive.extractall(folder, filter="data")

    return cache.entry(f"apicurio-{digest[:12]}", fill)


def lock() -> None:
    """Write the lists anew from what Ivy resolves to."""
    for label, path in LOCKS.items():
        with tempfile.TemporaryDirectory() as folder:
            _resolve(label, Path(folder))
            jars = sorted(Path(folder).iterdir())
            lines = [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars]
        path.write_text("".join(lines))


def _resolve(label: str, folder: Path) -> None:
    spec = importlib.util.find_spec("pyspark")  # not imported: it takes a second
    spark = Path(spec.origin if spec is not None and spec.origin is not None else "")
    with tempfile.TemporaryDirectory() as scratch:
        module = _MODULES.get(label, Path(scratch) / "ivy.xml")
        if label in _DELTA:
            module.write_text(_delta_module(_DELTA[label]))
        argv = [
            *(tools.java(), f"-Dkbackup.ivy.cache={scratch}", "-cp", f"{spark.parent}/jars/*", "org.apache.ivy.Main"),
            *("-settings", str(_HERE / "ivysettings.xml"), "-ivy", str(module), "-confs", "default"),
            *("-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        cache.run(argv, f"resolving the {label} jars", "check that the Maven repository can be reached")


def _delta_module(jars: TableJars) -> str:
    """Return the packages that users' sessions load by `spark.jars.packages`, as a module of Ivy's."""
    module = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(module, "info", organisation="kbackup", module="delta")
    ElementTree.SubElement(ElementTree.SubElement(module, "configurations"), "conf", name="default")
    dependencies = ElementTree.SubElement(module, "dependencies")
    for org, name, rev in (package.split(":") for package in jars.packages({"s3a"})):
        ElementTree.SubElement(dependencies, "dependency", org=org, name=name, rev=rev, conf="default->default")
    for org, name in (left_out.split(":") for left_out in LEFT_OUT):
        ElementTree.SubElement(dependencies, "exclude", org=org, module=name, matcher="glob")
    return ElementTree.tostring(module, "unicode")
