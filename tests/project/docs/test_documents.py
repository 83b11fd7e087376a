"""Check examples in documents: commands parse, configurations load, names and links exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kbackup.cli import COMMANDS, cli, plain_arguments
from kbackup.cli.common.frame import State
from kbackup.cli.common.notify import notifier_for
from kbackup.config import KEYS, VARIABLES, Files, load
from tests.project.docs.documents import DOCUMENTS, ROOT, Code, blocks, inline, kbackup_lines

LINES = sorted(set(kbackup_lines()))
GITHUB_ANCHOR = re.compile(r"[^\w\- ]")


def test_there_are_lines_of_every_command() -> None:
    assert {line.text.split()[0] for line in LINES} >= set(COMMANDS)


@pytest.mark.parametrize("line", LINES, ids=str)
def test_commands_parse(line: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is there and takes what it is given."""
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    name, *arguments = plain_arguments(shlex.split(line.text))
    command = cli.get_command(cli.make_context("kbackup", [name, "--help"], resilient_parsing=True), name)
    assert command is not None, f"no command {name}"
    if line.language == "inline" and not arguments:
        return  # it is only named
    state = State()
    with command.make_context(name, arguments, obj=state) as context:
        if isinstance(command, click.Group):
            part, below, rest = command.resolve_command(context, arguments)
            assert below is not None, f"no command {name} {part}"
            if rest:  # else it is only named
                below.make_context(part, rest, parent=context)
    load(state.settings, Files())


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_configurations_load(block: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_PASSWORD", "REGISTRY_PASSWORD", "EXPORTER_PASSWORD", "PAGERDUTY_KEY", "SPARK_SECRET"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("WEBHOOK_URL", "https://hooks.example.com/secret")
    file = tmp_path / "kbackup.toml"
    file.write_text(block.text, encoding="utf-8")
    config = load([], Files(config=str(file))).config
    if config.notify.url:
        assert notifier_for(config, "backup", {}) is not None, "URL and template are valid"
        return
    assert config.archive is not None
    assert config.archive.startswith("s3://")


def test_make_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for path in DOCUMENTS
        for target in re.findall(r"(?:^|`)make ([a-z]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named >= {"demo", "test"}
    assert named <= targets


def test_keys_and_variables_that_are_named() -> None:
    sections = {key.partition(".")[0] for key in KEYS if "." in key}
    for path in DOCUMENTS:
        for text in inline(path):
            if re.fullmatch(rf"({'|'.join(sections)})\.[a-z_]+", text) and text not in _OTHER_NAMES:
                assert text in KEYS, f"{path.name}: {text}"
            for variable in re.findall(r"KBACKUP_[A-Z_]+[A-Z]", text):
                assert variable in VARIABLES or _is_key(variable), f"{path.name}: {variable}"


_OTHER_NAMES = {"spark.authenticate", "spark.jars", "export.json"}
"""Properties of Spark's own, and a file."""


def _is_key(variable: str) -> bool:
    name = variable.removeprefix("KBACKUP_").lower()
    return name.startswith(("source_", "target_")) or name in {key.replace(".", "_") for key in KEYS}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked), target


def _anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {GITHUB_ANCHOR.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_document_can_be_found() -> None:
    """From the README, over links."""
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop().resolve()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8"))
        todo += [path.parent / link for link in links if not link.startswith("https://")]
    assert {p for p in DOCUMENTS if "vectors" not in p.parts} <= seen


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"], obj=State())
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")
