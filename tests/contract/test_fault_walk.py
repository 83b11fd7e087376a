"""A short random walk of each kind of store through faults; `python -m scripts.soak.faults` goes far."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import PART, bucket_location
from tests.contract.fault_walk import FaultWalk
from tests.contract.proxy import Proxy
from tests.contract.test_gcs_faults import GcsProxy

_STEPS, _SEED = 30, 7


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("name", ["minio", "versitygw", "azurite", "fakegcs"])
def test_nothing_is_lost_or_doubled(name: str, request: pytest.FixtureRequest) -> None:
    location: Any = bucket_location(name, request)
    kind = GcsProxy if name == "fakegcs" else Proxy
    with kind(location.server.endpoint_url) as proxy:
        walk = FaultWalk(location.opened(endpoint_url=proxy.url), location.store(), proxy, _SEED, PART)
        for _ in range(_STEPS):
            walk.step()
    assert walk.faults > _STEPS, "few of the faults came"
    assert walk.failed < _STEPS // 3, f"{walk.failed} of {2 * _STEPS} operations failed"
