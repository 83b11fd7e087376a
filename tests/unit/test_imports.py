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
    ("status", "drill"): "a status names the newest drill",
    ("status", "verify"): "a status names the newest verifications",
    ("verify", "drill"): "drills keep reports in the archive",
    ("verify", "groups"): "group writes keep captures in the archive",
    ("verify", "keys"): "a verification looks for conflicts of data keys",
    ("verify", "mirror"): "flows keep their status in the archive",
    ("verify", "restore"): "restores keep reports in the archive",
    ("verify", "settings"): "writes of settings keep captures in the archive",
}
"""Which package uses which, and why; every package may use `common`."""

ENTRIES = {
    ("backup", "follow"): "a second job, of many restore points",
    ("backup", "identity"): "a check asks whether the cluster is the archive's",
    ("capture", "cluster"): "a library of several jobs",
    ("capture", "live"): "a library of several jobs",
    ("capture", "settings"): "a library of several jobs",
    ("check", "trials"): "a second job, of parts of a configuration",
    ("common", "numbered_captures"): "a library of several jobs",
    ("common", "rounds"): "a library of several jobs",
    ("common", "stop"): "a library of several jobs",
    ("compare", "plan"): "commands take the request before they load the job, while the JVM starts",
    ("compare", "report"): "drill pages show reports without the job; a drill doesn't count its comparison",
    ("compare", "result"): "commands show results without the job",
    ("drill", "report"): "pages and a status read reports without the job",
    ("drill", "run"): "commands take the options before they load the job, while the JVM starts",
    ("drill", "stored"): "pages and a status read stored reports without the job",
    ("groups", "apply"): "a restore applies groups by its own plan",
    ("groups", "before"): "captures keep offsets in the form of groups; a verification reads them",
    ("groups", "mapping"): "a restore plans groups by its own topics",
    ("metadata", "compare"): "a library of several jobs",
    ("metadata", "merge"): "a library of several jobs",
    ("metadata", "read"): "a library of several jobs",
    ("migrate", "archive"): "a job of its own",
    ("migrate", "bootstrap"): "a job of its own",
    ("migrate", "preflight"): "a job of its own",
    ("migrate", "rollback"): "a job of its own",
    ("migrate", "states"): "a job of its own",
    ("migrate", "verify"): "a job of its own",
    ("mirror", "dry_run"): "a job of its own",
    ("mirror", "flow"): "commands name flows",
    ("mirror", "halves"): "the two jobs of a mirror",
    ("mirror", "positions"): "a job of its own",
    ("mirror", "properties"): "commands read the properties file before they choose a job",
    ("mirror", "status"): "a job of its own; a retention reads it as well",
    ("repair", "read_back"): "an adoption reads segments back",
    ("replay", "earlier_commits"): "a library of several jobs",
    ("replay", "prefetch"): "a library of several jobs",
    ("replay", "read"): "a library of several jobs",
    ("replay", "unit"): "a library of several jobs",
    ("restore", "content"): "comparisons, drills and pages plan a restore without running it",
    ("restore", "plan"): "a comparison packs units as a restore does",
    ("restore", "report"): "a verification reads reports without the job; a drill doesn't count its restore",
    ("settings", "before"): "a verification reads captures",
    ("settings", "changes"): "reports of several jobs name settings",
    ("settings", "plan"): "a restore plans settings by its own topics",
    ("settings", "restore"): "a part of a restore",
    ("settings", "undo"): "the job of its package",
    ("status", "report"): "the command shows reports without the job",
    ("verify", "report"): "a status reads reports without the job",
}
"""The modules beside `job` that others import, and why `job` is not enough. A job's values and reports come from `job`
where nothing speaks against it."""


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
    entered = {tuple(module.split(".")[2:4]) for _, module in _imports()}
    assert {entry for entry in entered if entry[1:] not in ((), ("job",))} == {*ENTRIES}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = _graph()
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imported) > 100
    TopologicalSorter(imported).prepare()  # CycleError names a circle
