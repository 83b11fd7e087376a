"""Check for the tools that must be on the machine first: Python, a JDK and Go.

`python -m scripts.dev.tools` checks; with `browser` it also sees to a Chromium.

Only the standard library is imported, and nothing newer than Python 3.8 is used: this is what says so to an older one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

MIN_PYTHON = (3, 11)
MIN_JAVA = 17
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class MissingToolError(RuntimeError):
    """A program that must be installed first; the message ends in what to install."""


def python() -> str:
    if sys.version_info < MIN_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        raise MissingToolError(
            f"python: {sys.executable} is {found}; install Python >= 3.11, or name one: make PYTHON=..."
        )
    return sys.executable


def java() -> str:
    """The path of a `java` of at least `MIN_JAVA`: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else None)  # noqa: PTH118
    hint = f"install a JDK >= {MIN_JAVA} and put it on PATH or in JAVA_HOME"
    if path is None:
        raise MissingToolError(f"java: not found in {home or 'PATH'}; {hint}")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < MIN_JAVA:
        raise MissingToolError(f"java: {path} is not a JDK >= {MIN_JAVA}: {said.strip()}; {hint}")
    return path


def go() -> str:
    path = shutil.which("go")
    if path is None:
        hint = "install Go >= 1.24: it builds MinIO, the S3 server that the tests use"
        raise MissingToolError(f"go: not found in PATH; {hint}")
    return path


def browser() -> str:
    """The path of a Chromium."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        hint = "install Debian's package chromium: tests of the web page run in it"
        raise MissingToolError(f"chromium: not found in PATH; {hint}")
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
    """The same as `browser`; root of a machine with apt-get gets it there."""
    apt = installer()
    if apt is None:
        return browser()
    print(f"as root, now: {apt} update, {apt} install chromium", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        if subprocess.run([apt, "--quiet", *arguments], env=quiet, check=False).returncode:
            raise MissingToolError(
                f"chromium: apt-get {arguments[0]} failed, see above; install chromium by hand"
            )
    return browser()


if __name__ == "__main__":
    try:
        python(), java()
        if "plan" in sys.argv[1:]:
            print(plan())
        if "browser" in sys.argv[1:]:
            print(install_browser())
    except MissingToolError as error:
        sys.exit(f"error: {error}")
