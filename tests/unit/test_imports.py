"""Check the imports of kbackup's jobs: which package may use which, and by which modules."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from graphlib import TopologicalSorter

import grimp

JOBS = "kbackup.jobs"

USES = {
    ("adopt", "repair"): "an adopted folder is read back as a repair reads orphan segments",
    ("backup", "capture"): "a restore point holds a capture",
    ("backup", "metadata"): "sources beside the brokers belong to a capture",
    ("capture", "groups"): "captures and writes of groups keep offsets in one form",
    ("check", "backup"): "a check asks what a backup would ask",
    ("check", "capture"): "a check captures as a backup does",
    ("check", "keys"): "a check tries the key",
    ("check", "metadata"): "a check reads each source of metadata",
    ("compare", "replay"): "a comparison reads the archive as a restore does",
    ("compare", "restore"): "a comparison takes the plan of a restore",
    ("diff", "capture"): "one side of a difference may be a live cluster",
    ("diff", "metadata"): "a difference is of merged metadata",
    ("diff", "settings"): "a difference names settings as a dry run does",
    ("drill", "compare"): "a drill compares what it restored",
    ("drill", "restore"): "a drill restores",
    ("importing", "export"): "an import reads what an export wrote",
    ("metadata", "capture"): "brokers are one source of metadata",
    ("migrate", "backup"): "an archived migration is a restore point",
    ("migrate", "capture"): "an archived migration is a capture",
    ("migrate", "metadata"): "the metadata of both modes is compared",
    ("mirror", "backup"): "the take half follows its source",
    ("mirror", "replay"): "the apply half replays exactly once",
    ("restore", "groups"): "a restore applies groups",
    ("restore", "replay"): "a restore replays exactly once",
    ("restore", "settings"): "a restore applies settings",
    ("retention", "mirror"): "a flow holds the restore points that it still needs",
    ("settings", "capture"): "what stood before is captured",
    ("verify", "drill"): "drills keep reports in the archive",
    ("verify", "groups"): "group writes keep captures in the archive",
    ("verify", "restore"): "restores keep reports in the archive",
    ("verify", "settings"): "writes of settings keep captures in the archive",
}
"""Which package uses which, and why; every package may use `common`."""

ENTRIES = {
    "backup": {"follow", "identity", "plan", "run"},
    "capture": {"cluster", "live", "settings"},
    "check": {"steps"},
    "common": {"numbered_captures", "rounds", "stop"},
    "compare": {"plan", "report", "result"},
    "copy": {"promote"},
    "diff": {"types", "views"},
    "drill": {"report", "run"},
    "export": {"delta", "delta_table", "destination", "parquet"},
    "groups": {"apply", "before", "mapping", "selection", "undo"},
    "metadata": {"compare", "merge", "read"},
    "migrate": {"archive", "bootstrap", "preflight", "rollback", "states", "verify"},
    "mirror": {"dry_run", "flow", "halves", "positions", "properties", "status"},
    "repair": {"read_back"},
    "replay": {"earlier_commits", "prefetch", "read", "unit"},
    "restore": {"content", "plan", "report"},
    "retention": {"policy", "report"},
    "settings": {"before", "changes", "plan", "restore", "undo"},
}
"""By package, the modules beside `job` that others import: second jobs, reports, and values that a job takes."""


@functools.cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("kbackup", exclude_type_checking_imports=False)


def _imports() -> Iterator[tuple[str, str]]:
    """Yield importer and imported module of every import of a job's package from outside of it."""
    graph = _graph()
    for module in graph.find_descendants(JOBS):
        package = module.split(".")[2]
        for importer in graph.find_modules_that_directly_import(module):
            if not (importer + ".").startswith(f"{JOBS}.{package}."):
                yield importer, module


def test_packages_use_one_another_as_named() -> None:
    pairs = {
        (importer.split(".")[2], module.split(".")[2])
        for importer, module in _imports()
        if importer.startswith(JOBS + ".")
    }
    assert {pair for pair in pairs if pair[1] != "common"} == {*USES}


def test_packages_use_one_another_in_one_direction() -> None:
    remaining = {*USES}
    while leaves := {used for _, used in remaining} - {user for user, _ in remaining}:
        remaining = {(user, used) for user, used in remaining if used not in leaves}
    assert remaining == set()


def test_packages_are_entered_by_named_modules() -> None:
    entered: dict[str, set[str]] = {}
    for _, module in _imports():
        package, *inner = module.split(".")[2:]
        entered.setdefault(package, set()).update(inner[:1])
    assert {p: modules - {"job"} for p, modules in entered.items() if modules - {"job"}} == ENTRIES


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = _graph()
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imported) > 100
    TopologicalSorter(imported).prepare()  # CycleError names a circle
