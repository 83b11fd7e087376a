"""`[source]` names where metadata is read beside the brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.config import ConfigFiles, Loaded, Setting, SettingOrigin, load
from kbackup.errors import UsageError
from kbackup.kafka.client import Connection
from kbackup.metadata.sources import MetricsAccess, Sources, ZooKeeperOptions

BROKERS = {"bootstrap.servers": "b:1"}


def loaded(monkeypatch: pytest.MonkeyPatch, folder: Path, **properties: str) -> Loaded:
    monkeypatch.chdir(folder)
    flags = [
        Setting(f"source.{name}", value, SettingOrigin("flag", "--set"))
        for name, value in (BROKERS | properties).items()
    ]
    return load(flags, ConfigFiles(), {})


def test_properties_without_zookeeper_name_brokers_alone() -> None:
    sources = Sources.of(BROKERS)
    assert (sources.kafka, sources.zookeeper, sources.metadata_log) == (BROKERS, None, "")


def test_properties_name_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = loaded(
        monkeypatch,
        tmp_path,
        **{
            "zookeeper.connect": "zk1:2181,zk2:2182/a/kafka",
            "zookeeper.session.timeout.ms": "2500",
            "zookeeper.sasl.username": "me",
            "zookeeper.sasl.password": "hush",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": "ca.pem",
            "metadata.log.dir": "/var/kraft",
            "controller.metrics.username": "watcher",
            "controller.metrics.password": "quiet",
            "controller.metrics.ssl.truststore.location": "ca.pem",
        },
    ).config
    sources = config.sources
    assert sources.kafka == BROKERS
    assert sources.metadata_log == "/var/kraft"
    assert sources.zookeeper == ZooKeeperOptions(
        connect="zk1:2181,zk2:2182/a/kafka",
        session_timeout=2.5,
        user="me",
        password="hush",
        tls=True,
        certificates="ca.pem",
    )
    assert (sources.zookeeper.servers, sources.zookeeper.chroot) == ("zk1:2181,zk2:2182", "/a/kafka")
    assert sources.metrics == MetricsAccess(user="watcher", password="quiet", certificates="ca.pem")
    assert "hush" not in repr(sources)
    assert "quiet" not in repr(sources)


def test_kafka_clients_get_properties_of_their_own_alone() -> None:
    properties = {"zookeeper.connect": "zk:1", "metadata.log.dir": "/x"}
    assert Connection(BROKERS | properties, "source").properties == BROKERS


@pytest.mark.parametrize("connect", ["zk:2181", "zk:2181/"])
def test_an_address_without_a_chroot_has_none(connect: str) -> None:
    zookeeper = Sources.of({"zookeeper.connect": connect}).zookeeper
    assert zookeeper is not None
    assert (zookeeper.servers, zookeeper.chroot) == ("zk:2181", "")


@pytest.mark.parametrize(
    ("properties", "message", "hint"),
    [
        ({"zookeeper.conect": "zk:1"}, "unknown property source.zookeeper.conect", "mean zookeeper.connect?"),
        ({"zookeeper.set.acl": "true"}, "unknown property source.zookeeper.set.acl", "configuration.md"),
        ({"zookeeper.connect": "zk"}, "source.zookeeper.connect 'zk' can't be used", "give host:port"),
        ({"zookeeper.connect": "zk:1/a,zk:2/a"}, "can't be used", "chroot such as /kafka at the end"),
        ({"zookeeper.session.timeout.ms": "6s"}, "'6s' can't be used", "milliseconds"),
        ({"zookeeper.ssl.client.enable": "yes"}, "'yes' can't be used", "true or false"),
        ({"zookeeper.sasl.username": "me"}, "zookeeper.sasl.username without zookeeper.connect", "set both"),
        ({"zookeeper.connect": "zk:1", "zookeeper.sasl.username": "me"}, "only work together", "set both"),
        ({"controller.metrics.user": "me"}, "unknown property", "mean controller.metrics.username?"),
        ({"controller.metrics.username": "me"}, "only work together", "set both"),
        ({"zookeeper.connect": "zk:1", "zookeeper.ssl.truststore.location": "a"}, "is off", "to true"),
    ],
)
def test_a_wrong_property_of_a_source_is_refused_with_a_hint(
    properties: dict[str, str], message: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as raised:
        loaded(monkeypatch, tmp_path, **properties)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_target_has_no_further_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="of the source alone"):
        load([Setting("target.zookeeper.connect", "zk:1", SettingOrigin("flag"))], ConfigFiles(), {})


def test_values_of_references_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        load([Setting("source.zookeeper.connect", "${env:ZK}", SettingOrigin("flag"))], ConfigFiles(), {"ZK": "hush"})
    assert "hush" not in str(raised.value)
