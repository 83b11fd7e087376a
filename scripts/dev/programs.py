"""Programs that Go builds once from pinned source, which it checks against the public checksum database."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from scripts.dev import cache, tools

_HINT = "check that Go modules can be fetched, then run again"


@dataclass(frozen=True)
class Program:
    """`folder` is that of the program in its module where it must be built from within: Go installs no program of a
    module that replaces or excludes others. `tags` leave parts of it out."""

    name: str
    module: str
    version: str
    folder: str = ""
    tags: str = ""

    @property
    def module_version(self) -> str:
        return f"{self.module}@{self.version}"


MINIO = Program("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
HELM = Program("helm", "helm.sh/helm/v4", "v4.0.5", "./cmd/helm")
# without what finds the machines of some twenty clouds; it still takes four minutes
PROMTOOL = Program(
    "promtool", "github.com/prometheus/prometheus", "v0.311.0", "./cmd/promtool", "remove_all_sd"
)


@functools.cache
def binary(program: Program) -> Path:
    """Its path; built on first use (on two cores helm takes a minute, MinIO three)."""

    def fill(folder: Path) -> None:
        env = {"GOBIN": str(folder), "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        argv = [tools.go(), "install", f"-tags={program.tags}", program.module_version]
        if program.folder:
            within = [
                "build",
                "-C",
                source(program.module_version),
                f"-tags={program.tags}",
                "-o",
                str(folder),
                program.folder,
            ]
            argv = [tools.go(), *within]
        cache.run(argv, f"building {program.module_version}", _HINT, env)

    return cache.entry(f"{program.name}-{program.version}", fill) / program.name


def source(module_version: str) -> str:
    """The folder of a module, fetched and checked."""
    said = cache.run(
        [tools.go(), "mod", "download", "-json", module_version], f"fetching {module_version}", _HINT
    )
    return str(json.loads(said)["Dir"])


def check_rules() -> None:
    """Prometheus' own word on the alert rules and their tests."""
    tests = Path(__file__).parents[2] / "infra/helm/kbackup/files/kbackup.test.yaml"
    argv = [str(binary(PROMTOOL)), "test", "rules", str(tests)]
    cache.run(argv, "the test of the alert rules", "mend the rules, or what the tests expect of them")
