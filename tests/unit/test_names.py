"""Names in the code: a public class has one home, and a dotted name of kbackup names something that exists, also where
Python doesn't look: in strings and documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kbackup.mirror.properties.keys import OWN_KEYS

ROOT = Path(__file__).parents[2]
_DOTTED = re.compile(r"(?<![\w./@-])kbackup(?:\.[A-Za-z_]\w*)+")


@pytest.mark.parametrize("folder", ["kbackup", "tests", "scripts", "infra", "formats", "README.md", "pyproject.toml"])
def test_dotted_names_in_documents_are_of_the_code(folder: str) -> None:
    top = ROOT / folder
    files = [top] if top.is_file() else [*top.rglob("*.py"), *top.rglob("*.md")]
    names = {(name, file) for file in files for text in _texts(file) for name in _DOTTED.findall(text)}
    stale = [f"{file.relative_to(ROOT)}: {name}" for name, file in sorted(names) if not _exists(name)]
    assert not stale, "these names are of no module of kbackup, and of nothing in one: " + ", ".join(stale)


def test_a_class_name_has_one_home() -> None:
    homes: dict[str, list[str]] = {}
    for file in (ROOT / "kbackup").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert not shared, f"give all but one of these classes a name of its own: {shared}"


def _texts(file: Path) -> list[str]:
    """Return a document's text, of a program only the strings: imports are Python's to check."""
    text = file.read_text()
    if file.suffix != ".py":
        return [text]
    constants = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def _exists(name: str) -> bool:
    """Whether a name is of a module or of something in one; `kbackup.toml` and its like are no such names, nor are the
    keys of a mirror's file."""
    if name in OWN_KEYS:
        return True
    place, (package, *rest) = ROOT / "kbackup", name.split(".")[1:]
    if not (place / package).is_dir():
        return True
    place /= package
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    is_module = bool(rest) and (place / f"{rest[0]}.py").exists()
    module = place / f"{rest.pop(0)}.py" if is_module else place / "__init__.py"
    return not rest or (module.exists() and re.search(rf"\b{rest[0]}\b", module.read_text()) is not None)
