"""Read the files of `infra/`, and the configuration that a container's arguments and variables make."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from kbackup.cli import cli
from kbackup.cli.common.command_context import FlagValues
from kbackup.config import Config, ConfigFiles, load

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"


def documents(path: Path) -> list[Any]:
    """The YAML documents of a file; an alias or a tag that is not YAML's own is an error."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def config_of(args: Sequence[str], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """As kbackup would start with them; it is not run. `click.UsageError`, `UsageError` where it would refuse."""
    name, *arguments = args
    command = cli.get_command(cli.make_context("kbackup", [name, "--help"], resilient_parsing=True), name)
    assert command is not None, f"no command {name}"
    state = FlagValues()
    with command.make_context(name, list(arguments), obj=state, **cli.context_settings):
        return load(state.settings, ConfigFiles(config=str(file) if file else None), environ).config


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bkbackup_\w+", expression))


@cache
def spark_on_kubernetes() -> str:
    """All classes of Spark's part for Kubernetes, in which every name that it knows stands as it is."""
    spec = find_spec("pyspark")
    assert spec is not None
    (jar,) = Path(str(spec.origin)).parent.glob("jars/spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        return "\n".join(n + classes.read(n).decode("latin-1") for n in classes.namelist() if n.endswith(".class"))
