"""Connections to ZooKeeper that can't even be tried."""

from __future__ import annotations

import sys

import pytest

from kbackup.errors import UsageError
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.zookeeper.session import open_session


@pytest.mark.parametrize(("module", "user"), [("kazoo.client", ""), ("puresasl", "kafka")])
def test_a_missing_package_is_named_with_what_brings_it(
    module: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    options = ZooKeeperOptions(connect="127.0.0.1:1", user=user, password="a password")
    with pytest.raises(UsageError) as missing, open_session(options):
        pass
    package = module.partition(".")[0]
    assert str(missing.value) == (
        f"ZooKeeper can't be read without the package {package}; install it: pip install 'kafka-kbackup[zookeeper]'"
    )
