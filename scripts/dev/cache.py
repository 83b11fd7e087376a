"""The cache folder for what tests and the demo need but the tree doesn't hold: broker jars, the MinIO binary.

It is `$KBACKUP_CACHE`, else `$XDG_CACHE_HOME/kbackup`, else `~/.cache/kbackup`. An entry is a folder that
appears whole (built beside, then renamed): a half-filled one is never used, a second run waits for the first.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbackup.errors import CorruptError, KbackupError
from scripts.dev import tools


def cache_root() -> Path:
    if chosen := os.environ.get("KBACKUP_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).absolute() / "kbackup"


def entry(name: str, fill: Callable[[Path], None]) -> Path:
    """The cache's folder `name`; where it is missing, `fill` gets an empty folder to make it in."""
    root = cache_root()
    final = root / name
    if final.is_dir():
        return final
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():  # another run filled it while we waited
            return final
        building = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=root))
        try:
            fill(building)
            building.rename(final)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return final


def check_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """`CorruptError` unless `folder` holds exactly the files of `sums`, with those SHA-256."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    wrong = sorted(name for name in found.keys() | sums.keys() if found.get(name) != sums.get(name))
    if wrong:
        raise CorruptError(
            f"files in {folder} that are missing, foreign or not the locked ones: {', '.join(wrong)}",
            "remove the folder to fetch them again; if it stays, the source has other bytes than were locked",
        )


def run(
    argv: Sequence[str], label: str, hint: str, env: Mapping[str, str] | None = None, seconds: float | None = None
) -> str:
    """Run a build step or a tool and return its output; when it fails, the error carries the end of it. What has not
    ended after `seconds` is killed; None waits for as long as it takes."""
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        printed = b"\n".join(filter(None, (error.stdout, error.stderr))).decode(errors="replace")
        tail = "\n".join(printed.splitlines()[-25:])
        raise KbackupError(f"{label} has not ended within {seconds:.0f} s:\n{tail}\n", hint) from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise KbackupError(f"{label} ended with exit code {done.returncode}:\n{tail}\n", hint)
    return done.stdout


# Programs that Go builds once from pinned source, which it checks against the public checksum database.

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


MINIO = Program("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
VERSITY = Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
FAKE_GCS = Program("fake-gcs-server", "github.com/fsouza/fake-gcs-server", "v1.56.1")
HELM = Program("helm", "helm.sh/helm/v4", "v4.0.5", "./cmd/helm")
# without what finds the machines of some twenty clouds; it still takes four minutes
PROMTOOL = Program("promtool", "github.com/prometheus/prometheus", "v0.311.0", "./cmd/promtool", "remove_all_sd")


_FAST_BUILD = ("-gcflags=all=-l -dwarf=false", "-ldflags=-w")
"""No inlining and nothing for debuggers: a third less processor time to build (versitygw: 81 s in place of 125 s)."""


@functools.cache
def binary(program: Program) -> Path:
    """Its path; built on first use (on two cores helm takes a minute, MinIO three)."""

    def fill(folder: Path) -> None:
        source = f"{program.module}@{program.version}"
        env = {"GOBIN": str(folder), "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        flags = (*_FAST_BUILD, f"-tags={program.tags}")
        argv = [tools.go(), "install", *flags, source]
        if program.folder:
            got = run([tools.go(), "mod", "download", "-json", source], f"fetching {source}", _HINT)
            within = ("-C", json.loads(got)["Dir"], *flags, "-o", str(folder))
            argv = [tools.go(), "build", *within, program.folder]
        run(argv, f"building {source}", _HINT, env)

    return entry(f"{program.name}-{program.version}", fill) / program.name


def check_rules() -> None:
    """Prometheus' own word on the alert rules and their tests."""
    tests = Path(__file__).parents[2] / "infra/helm/kbackup/files/kbackup.test.yaml"
    argv = [str(binary(PROMTOOL)), "test", "rules", str(tests)]
    run(argv, "the test of the alert rules", "mend the rules, or what the tests expect of them")
