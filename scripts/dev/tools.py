"""Check for the tools that must be on the machine first: Python, a JDK, Go and Node.js.

`python -m scripts.dev.tools` checks; with `browser` it also sees to a Chromium, with `containers` to what builds and
runs the image, with `nodes` to what a node of Kubernetes needs; with `plan` it says what comes later.

Only the standard library is imported, and nothing newer than Python 3.8 is used: this is what says so to an older one.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import subprocess
import sys

MIN_PYTHON = (3, 11)
JDKS = (17, 21)  # that Spark runs on
PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # that the wheel is installed for, where they are on the machine
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CONTAINERS = {
    "podman": "/usr/bin/podman",
    "crun": "/usr/bin/crun",
    "debootstrap": "/usr/sbin/debootstrap",
    "locales": "/usr/share/i18n/charmaps",
}  # Debian's packages that `make image` needs, each with a file of it
NODES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "dnsmasq-base": "/usr/sbin/dnsmasq",
    "iproute2": "/bin/ip",
    "iptables": "/usr/sbin/iptables",
}  # the same for a node of Kubernetes, which `make clusters` runs


class MissingToolError(RuntimeError):
    """A program that must be installed first; the message ends in what to install."""


def check_python() -> None:
    if sys.version_info < MIN_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        hint = "install Python >= 3.11, or name one: make PYTHON=..."
        raise MissingToolError(f"python: {sys.executable} is {found}; {hint}")


def pythons() -> dict[str, str | None]:
    """The path of each of `PYTHONS`, on PATH or among pyenv's; None where there is none."""
    paths = {}
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")  # noqa: PTH111
    for version in PYTHONS:
        pattern = os.path.join(root, "versions", version + ".*", "bin", "python" + version)  # noqa: PTH118
        ours = sys.executable if sys.version_info[:2] == tuple(map(int, version.split("."))) else None
        candidates = filter(None, [ours, shutil.which("python" + version), *sorted(glob.glob(pattern))])  # noqa: PTH207
        paths[version] = next((path for path in candidates if _version(path) == version), None)
    return paths


def _version(path: str) -> str:
    """Ask a Python for its version; a shim of pyenv's may have nothing behind it."""
    argv = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def pythons_plan() -> str:
    """Name the Pythons that the wheel is installed for, and those that are missing."""
    paths = pythons()
    there = ", ".join(f"{version} ({path})" for version, path in paths.items() if path)
    missing = ", ".join(version for version, path in paths.items() if path is None)
    return f"wheels: Python {there}" + (f"; not on this machine, so not tested: {missing}" if missing else "")


@functools.lru_cache  # each look starts a JVM
def _found_java(home: str | None, folders: str | None) -> tuple[str, str]:
    """Return the path of the `java` of a JDK in `JDKS`, of `home` or else in `folders` (PATH), and what it says of its
    version."""
    path = shutil.which("java", path=os.path.join(home, "bin") if home else folders)  # noqa: PTH118
    wanted = f"JDK {JDKS[0]} or {JDKS[1]}"
    hint = f"install {wanted} and put it on PATH or in JAVA_HOME"
    if path is None:
        raise MissingToolError(f"java: not found in {home or 'PATH'}; {hint}")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) not in JDKS:
        raise MissingToolError(f"java: {path} is not of {wanted}: {said.strip()}; {hint}")
    return path, said


def java() -> str:
    """The path of the `java` of a JDK in `JDKS`: JAVA_HOME's, else the one on PATH."""
    return _found_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))[0]


def java_version() -> str:
    """What that `java` says of its version, without the note that it took options from the environment."""
    said = _found_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))[1]
    return "\n".join(line for line in said.splitlines() if not line.startswith("NOTE: "))


def go() -> str:
    path = shutil.which("go")
    if path is None:
        raise MissingToolError("go: not found in PATH; install Go >= 1.24: it builds servers and Helm for the tests")
    return path


def node() -> str:
    return _of_node("node")


def npm() -> str:
    return _of_node("npm")


def _of_node(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise MissingToolError(
            name + ": not found in PATH; install Node.js >= 20 with npm: Azurite of the tests runs in it"
        )
    return path


def browser() -> str:
    """The path of a Chromium."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        hint = "install Debian's package chromium: tests of the web page run in it"
        raise MissingToolError(f"chromium: not found in PATH; {hint}")
    return path


def podman() -> str:
    """The path of podman, which builds and runs the image."""
    path = shutil.which("podman")
    if path is None:
        raise MissingToolError(
            "podman: not found in PATH; install podman >= 4.3 and crun, or run make clusters as root"
        )
    return path


def debootstrap() -> str:
    """The path of debootstrap, by which root makes a base for the image where no registry is reached."""
    path = shutil.which("debootstrap")
    if path is None or os.geteuid() != 0:
        missing = "not found in PATH" if path is None else "runs as root alone"
        raise MissingToolError(f"debootstrap: {missing}; name a base: make image BASE=python:3.11-slim-bookworm")
    return path


def program(name: str) -> str:
    """The path of a program of a node: of `NODES`, or of Linux itself."""
    path = shutil.which(name)
    if path is None:
        raise MissingToolError(name + ": not found in PATH; run make clusters as root, which installs it")
    return path


def installer() -> str | None:
    """The apt-get that would get a Chromium: where none is there, for root; else None."""
    return None if any(map(shutil.which, BROWSERS)) or os.geteuid() != 0 else shutil.which("apt-get")


def plan() -> str:
    """Describe the changes that `install_browser` is going to make on the machine."""
    apt = installer()
    if apt is None:
        return "nothing is installed outside this folder and the cache"
    return f"as root, later on: {apt} update, {apt} install chromium (tests of the web page run in it); Ctrl-C stops it"


def install_browser() -> str:
    """Return what `browser` does; root of a machine with apt-get installs it there."""
    apt = installer()
    if apt is not None:
        _install(apt, ["chromium"])
    return browser()


def install_containers() -> str:
    """Return the path of podman; root of a machine with apt-get installs what builds and runs the image."""
    _install_missing(CONTAINERS)
    return podman()


def install_nodes() -> str:
    """Return the path of containerd; root of a machine with apt-get installs what a node of Kubernetes needs."""
    _install_missing(NODES)
    return program("containerd")


def _install_missing(packages: dict[str, str]) -> None:
    apt = shutil.which("apt-get") if os.geteuid() == 0 else None
    missing = [package for package, file in packages.items() if not os.path.exists(file)]  # noqa: PTH110
    if apt is not None and missing:
        _install(apt, missing)


def _install(apt: str, packages: list[str]) -> None:
    names = " ".join(packages)
    print(f"as root, now: {apt} update, {apt} install {names}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        if subprocess.run([apt, "--quiet", *arguments], env=quiet, check=False).returncode:
            raise MissingToolError(f"{names}: apt-get {arguments[0]} failed, see above; install {names} by hand")


if __name__ == "__main__":
    try:
        check_python()
        java()
        if "plan" in sys.argv[1:]:
            print(plan())
        if "browser" in sys.argv[1:]:
            print(install_browser())
        if "containers" in sys.argv[1:]:
            print(install_containers())
        if "nodes" in sys.argv[1:]:
            print(install_nodes())
    except MissingToolError as error:
        sys.exit(f"error: {error}")
