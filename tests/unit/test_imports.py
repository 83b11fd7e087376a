"""Check the imports of kbackup's jobs, and that whatever is named by a dotted name exists."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

JOBS = "kbackup.jobs"
ROOT = Path(__file__).parents[2]
_DOTTED = re.compile(r"(?<![\w./@-])kbackup(?:\.[A-Za-z_]\w*)+")

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


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = _graph()
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imported) > 100
    TopologicalSorter(imported).prepare()  # CycleError names a circle


@pytest.mark.parametrize(
    "folder", ["kbackup", "tests", "scripts", "infra", "formats", "README.md", "pyproject.toml"]
)
def test_dotted_names_exist(folder: str) -> None:
    top = ROOT / folder
    files = [top] if top.is_file() else [*top.rglob("*.py"), *top.rglob("*.md")]
    names = {(name, file) for file in files for text in _texts(file) for name in _DOTTED.findall(text)}
    stale = [f"{file.relative_to(ROOT)}: {name}" for name, file in sorted(names) if not _exists(name)]
    assert not stale, "these names are of no module of kbackup, and of nothing in one: " + ", ".join(stale)


def _texts(file: Path) -> list[str]:
    """Return a document's text, of a program only the strings: imports are Python's to check."""
    text = file.read_text()
    if file.suffix != ".py":
        return [text]
    constants = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def _exists(name: str) -> bool:
    """Whether a name is of a module or of something in one; `kbackup.toml` and its like are no such names."""
    place, (package, *rest) = ROOT / "kbackup", name.split(".")[1:]
    if not (place / package).is_dir():
        return True
    place /= package
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    is_module = bool(rest) and (place / f"{rest[0]}.py").exists()
    module = place / f"{rest.pop(0)}.py" if is_module else place / "__init__.py"
    return not rest or (module.exists() and re.search(rf"\b{rest[0]}\b", module.read_text()) is not None)
