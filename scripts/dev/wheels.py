"""Build the sdist and the wheel twice, and install them with all extras.

    python -m scripts.dev.wheels
    python -m scripts.dev.wheels --each-python
    python -m scripts.dev.wheels FOLDER

Both builds must be the same byte for byte. The wheel is installed for the Python that runs this, or for each one that
kbackup supports. With the name of a folder it is only built there, for a release.
The versions are those of requirements/dev.txt. The packages come from uv's cache, as hard links where it is on the same
disk. Commands then show that each installation is whole: its data files, compiled kernels, extras and Spark's workers.
A Python that is not on this machine is named, and is no error.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.dev import cache, tools

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "dev.txt"
_UV = str(Path(sys.executable).with_name("uv"))
_SETTINGS = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}


def build(folder: Path) -> Path:
    """Build the sdist, and of it the wheel, with the time of the last commit in both; return the wheel's path."""
    moment = cache.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], "git log", "run it in a clone").strip()
    os.umask(0o022)  # a wheel keeps the modes that its files are made with
    options = ["--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
    _uv("build", "--sdist", *options, str(ROOT))
    (sdist,) = folder.glob("*.tar.gz")
    _pack_again(sdist, int(moment))
    _uv("build", "--wheel", *options, str(sdist), SOURCE_DATE_EPOCH=moment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _pack_again(sdist: Path, moment: int) -> None:
    """Pack the files of an sdist without what differs from build to build: setuptools keeps times, owners and modes."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as new:
        for member in sorted(old, key=lambda member: member.name):
            member.uid, member.gid, member.uname, member.gname, member.mtime = 0, 0, "", "", moment
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member))
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=moment))


def install(folder: Path, python: str, wheel: Path) -> None:
    """Make an environment for a Python, of the locked packages; the wheel asks for them as pip reads it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = ",".join(sorted(project["optional-dependencies"]))
    _uv("venv", "--no-project", "--python", python, str(folder))
    ours = ("--python", str(folder / "bin" / "python"))
    _uv("pip", "install", *ours, "--constraint", str(LOCK), f"{wheel}[{extras}]")
    _uv("pip", "check", *ours)


def run_without_installing(clone: Path) -> str:
    """Run README's line of uvx in a clone, of the locked packages; return the version that kbackup prints."""
    cache.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(clone)], "git clone", "run it by hand")
    (source,) = re.findall(r"^uvx --from '(\S+)' kbackup ", (clone / "README.md").read_text("utf-8"), re.MULTILINE)
    command = [_UV, "tool", "run", "--python", sys.executable, "--constraints", str(LOCK), "--from", source]
    environ = os.environ | _SETTINGS
    run = subprocess.run(
        [*command, "kbackup", "--version"], cwd=clone, env=environ, capture_output=True, text=True, check=False
    )
    _check("README's line of uvx", run.returncode == 0 and run.stdout.startswith("kbackup "), run.stdout + run.stderr)
    return run.stdout.strip()


def _uv(*arguments: str, **environ: str) -> None:
    hint = "run it by hand to see more; the locked packages must be there for each Python"
    cache.run([_UV, *arguments], f"uv {' '.join(arguments[:2])}", hint, _SETTINGS | environ)


_ARCHIVE = str(ROOT / "tests" / "golden" / "java" / "archive")
_IMPORTS = (
    "import kbackup.native.compiled, kbackup.web.app, kbackup.migrate.zookeeper, delta, moto;"
    "import kbackup.store.azure.store, kbackup.store.gcs.store, kbackup.schemas.avro, kbackup.schemas.protobuf, jq"
)

_DOCUMENTS = "from kbackup.web.documents import read_document; print(read_document('restore').title)"


def try_commands(folder: Path) -> int:
    """Run the commands of an environment, and return their number; an error that one of them prints is an error."""
    version = _output(folder, "kbackup", "--version")
    shown = _output(folder, "kbackup", "--help")
    records = _output(folder, "kbackup", "cat", "orders.v1", "--archive", _ARCHIVE, "--json")
    verified = _output(folder, "kbackup", "verify", "--quiet", "--master", "local[1]", "--json", _ARCHIVE)
    imported = _output(folder, "python", "-c", _IMPORTS)
    report = json.loads(verified)
    _check("--version", version.startswith("kbackup "), version)
    _check("--help", "Back up Apache Kafka" in shown, shown)
    _check("cat", len(records.splitlines()) == 145, records)
    _check("verify", report["findings"] == [] and report["read_records"] == 385, verified)
    _check("the imports of the extras", imported == "", imported)
    documents = _output(folder, "python", "-c", _DOCUMENTS)
    _check("the documents of the web page", documents == "Restore, on the worst day\n", documents)
    page = folder / "share" / "man" / "man1" / "kbackup.1"
    _check("man", page.is_file(), f"{page} is missing")
    licences = {path.name for path in folder.glob("lib/*/site-packages/kafka_kbackup-*/licenses/*")}
    _check("the licence", licences == {"LICENSE", "NOTICE"}, str(licences))
    return 6


def _output(folder: Path, name: str, *arguments: str) -> str:
    """Run a program of an environment in an empty folder, with a cache of its own; return what it prints."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
    argv = [str(folder / "bin" / name), *arguments]
    run = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
    output = f"exit code {run.returncode}\n{run.stdout}{run.stderr}"
    _check(" ".join([name, *arguments]), run.returncode == 0 and run.stderr == "", output)
    return run.stdout


def _check(label: str, passes: bool, output: str) -> None:
    if not passes:
        raise KbackupError(f"{label} did not do its work: {output[-3000:]}", "mend the package or its metadata")


def _pythons(*, each: bool) -> dict[str, str]:
    """Return the Pythons to install for, by version."""
    if not each:
        return {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    print(tools.pythons_plan(), flush=True)
    return {version: path for version, path in tools.pythons().items() if path is not None}


def main(arguments: list[str]) -> None:
    each = arguments == ["--each-python"]
    if arguments and not each:
        print(build(Path(arguments[0])))
        return
    pythons = _pythons(each=each)
    with tempfile.TemporaryDirectory(prefix="kbackup-wheels-") as folder, ThreadPoolExecutor(2) as pool:
        wheel = build(Path(folder) / "dist")
        again = Path(folder) / "again"
        build(again)
        for path in again.glob("kafka_kbackup-*"):
            same = path.read_bytes() == (wheel.parent / path.name).read_bytes()
            _check("the second build", same, f"{path.name} has other bytes than in the first")
        trials = []
        for version, python in pythons.items():
            trials.append(pool.submit(_try, version, python, Path(folder) / f"python{version}", wheel))
        without_installing = pool.submit(run_without_installing, Path(folder) / "clone")
        for trial in trials:
            print(trial.result(), flush=True)
        print(f"uvx in a clone: {without_installing.result()}", flush=True)


def _try(version: str, python: str, folder: Path, wheel: Path) -> str:
    start = time.monotonic()
    install(folder, python, wheel)
    tried = try_commands(folder)
    return f"Python {version}: installed with all extras, {tried} commands; {time.monotonic() - start:.0f}s"


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KbackupError as error:
        sys.exit(f"error: {error}")
