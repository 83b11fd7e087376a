"""Which files of tests run in one process, and which run first, under `--dist loadfile` (a plugin of pytest-xdist).

A fixture of a session is made anew in each process that has a test for it. Files that share one that takes long to make
run in one process, one after another.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = {
    "mirror": ("mirror/test_following", "mirror/test_held_back", "mirror/test_positions", "mirror/test_topologies"),
    "secured": ("test_least_privilege", "test_secured", "test_transactions"),
    "zoo": (
        *("test_backup", "test_delta", "test_drill_zoo", "test_point_in_time", "test_preflight"),
        *("test_restore", "test_spark_source"),
    ),
}
"""Files of tests/integration by what they share: three clusters, one with logins, and an archive of odd topics."""

LONGEST = (
    *(
        "interop/migration/test_walk",
        "integration/test_documented_commands",
        "zoo",
        "interop/migration/test_sensitive_configs",
        "faults/test_cluster",
        "integration/test_web_page",
        "integration/test_spark_cluster",
        "secured",
    ),
    *("contract/test_store", "faults/test_backup_killed", "integration/test_broker_ages", "faults/test_mirror_loop"),
    *("interop/migration/test_fresh_cluster", "interop/migration/test_rollback"),
    *("faults/test_kill_loop", "faults/test_follow", "faults/test_restore_killed", "mirror", "contract/test_s3_faults"),
)
"""They take a minute or more and run first: at the end no process is left with one of them alone."""

_GROUPS = {f"integration/{file}": group for group, files in TOGETHER.items() for file in files}


def unit_of(nodeid: str) -> str:
    """Return the group of a test's file, or the file without `tests/` and its suffix."""
    file = str(PurePosixPath(nodeid.partition("::")[0]).with_suffix("")).removeprefix("tests/")
    return _GROUPS.get(file, file)


class Units(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups and files as `unit_of` tells them apart."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Units | None:
    return Units(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first; the others stay in the order of the command line."""
    # The controller hands tests out in the order in which workers collect them, and workers don't know `--dist`.
    if hasattr(config, "workerinput"):
        places = {unit: place for place, unit in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(unit_of(item.nodeid), len(places)))
