"""Build the site of the documents from the files of a checkout: python -m scripts.docs.site

The pages keep their folders, so that links are the same here and on a code host. What pages link to comes along.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = Path("infra/docs-site/zensical.toml")
LINK = re.compile(r"(?<=\]\()(?!https://)([^)#\s]+)")
_ITEM = re.compile(r"(?:- |\d+\. )")
_FENCE = re.compile(r"\s*```")
_CODE = re.compile(r"`[^`\n]+`")


def main() -> int:
    """Write build/site/html; a broken link or anchor ends it with 1."""
    folder = ROOT / "build" / "site"
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder)
    problems = build(folder)
    print(problems or f"the site is in {(folder / 'html').relative_to(ROOT)}")
    return 1 if problems else 0


def build(folder: Path) -> str:
    """Make the folder html of what is staged; return what is wrong with it, if anything."""
    program = Path(sys.executable).with_name("zensical")
    command = [str(program), "build", "--strict", "--clean", "-f", str(folder / "zensical.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    return text.partition("Traceback")[0].strip() if done.returncode else ""


def stage(folder: Path) -> None:
    """Copy settings, pages and the files that pages link to into a folder."""
    pages = folder / "pages"
    shutil.copytree(ROOT / SETTINGS.parent / "assets", pages / "assets")
    shutil.copy(ROOT / SETTINGS, folder)
    for page in navigation():
        path = pages / page
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / page).read_text("utf-8")
        text = tasks_first(text) if page == Path("README.md") else text
        path.write_text(plain_markdown(text), encoding="utf-8")
        for target in LINK.findall(text):
            source = (ROOT / page.parent / target).resolve()
            if source.is_file() and source.suffix != ".md":
                copy = pages / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)


def navigation() -> list[Path]:
    """Return the pages of the site in their order."""
    return [*map(Path, _paths(tomllib.loads((ROOT / SETTINGS).read_text("utf-8"))["project"]["nav"]))]


def _paths(entries: list[dict[str, object]]) -> Iterator[str]:
    for value in (value for entry in entries for value in entry.values()):
        if isinstance(value, list):
            yield from _paths(value)
        else:
            yield str(value)


def tasks_first(readme: str) -> str:
    """Return the start page: the README, with its table of documents before the other sections."""
    head, *sections = re.split(r"^(?=## )", readme, flags=re.MULTILINE)
    return head + "".join(sorted(sections, key=lambda section: not section.startswith("## Documents by task")))


def plain_markdown(text: str) -> str:
    """Rewrite what a code host reads and Python's Markdown does not: blocks without a blank line, lists in lists."""
    return "\n".join(_blocks(text.splitlines())) + "\n"


def _blocks(lines: list[str]) -> Iterator[str]:
    """Yield the lines with an empty one before lists, fences and tables, and the insides of items at four spaces."""
    kind = ""
    while lines:
        line, lines = lines[0], lines[1:]
        item, before = _ITEM.match(line), kind
        kind = "item" if item else "fence" if _FENCE.match(line) else "table" if line.startswith("|") else line[:1]
        if kind in ("item", "fence", "table") and before and kind != before:
            yield ""
        if kind == "fence":
            end = next(at for at, each in enumerate(lines) if _FENCE.match(each)) + 1
            yield from [line, *lines[:end]]
            lines = lines[end:]
        elif item:
            width = item.end()
            end = next((at for at, each in enumerate(lines) if each and not each.startswith(" " * width)), len(lines))
            first, *inside = _blocks([line[width:], *(each[width:] for each in lines[:end])])
            yield item[0].ljust(4) + first
            yield from (each and f"    {each}" for each in inside)
            lines = lines[end:]
            if "" in inside and inside[-1] and lines:
                yield ""
        elif kind == "table":
            yield _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        else:
            yield line


if __name__ == "__main__":
    sys.exit(main())
