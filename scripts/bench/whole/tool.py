"""A tool to measure: its commands, files and environment, with the servers' addresses filled in."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Self

_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Tool:
    """`commands` by work ('backup', 'restore'), `files` by name and `env` are templates of `string.Template`.

    Their variables: `folder`, `bootstrap`, `endpoint`, `region`, `bucket`, `prefix`, `access_key`, `secret_key`,
    `topic`, `target` (the topic that a restore creates and fills) and `program` (the tool's).
    """

    name: str
    commands: Mapping[str, list[str]]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a TOML file: `name`, and the tables `commands`, `files`, `env`."""
        document = tomllib.loads(path.read_text("utf-8"))
        return cls(document["name"], document["commands"], document.get("files", {}), document.get("env", {}))

    def prepare(self, work: str, variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Write the tool's files into `variables['folder']`, and return its command and environment."""
        folder = Path(variables["folder"])
        for name, text in self.files.items():
            (folder / name).write_text(Template(text).substitute(variables), "utf-8")
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_"))}
        filled = {name: Template(value).substitute(variables) for name, value in self.env.items()}
        return [Template(word).substitute(variables) for word in self.commands[work]], plain | filled


def kbackup(name: str = "kbackup", tree: Path = _ROOT, more: Mapping[str, str] | None = None) -> Tool:
    """Return kbackup of a checkout as a tool, with `more` environment variables."""
    command = [sys.executable, "-m", "kbackup", "--json"]
    env = {
        "PYTHONPATH": str(tree),
        "KBACKUP_ARCHIVE": "s3://$bucket/$prefix",
        "KBACKUP_S3_ENDPOINT_URL": "$endpoint",
        "KBACKUP_S3_REGION": "$region",
        "KBACKUP_S3_ACCESS_KEY_ID": "$access_key",
        "KBACKUP_S3_SECRET_ACCESS_KEY": "$secret_key",
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": "$bootstrap",
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": "$bootstrap",
        "KBACKUP_BACKUP_TOPICS": "$topic",
    }
    restore = ["restore", "--topic", "$topic", "--map", "$topic=$target"]
    commands = {"backup": [*command, "backup"], "restore": [*command, *restore]}
    return Tool(name, commands, env=env | dict(more or {}))
