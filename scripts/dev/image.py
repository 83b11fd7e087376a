"""The image of infra/image: built by podman, and run as Kubernetes would run it.

    python -m scripts.dev.image [BASE]   # `make image`, `make image BASE=python:3.11-slim-bookworm`

Without a BASE, the image stands on Debian itself, which debootstrap makes here: so no registry has to be reached.
Images are in a storage of their own in the cache; layers that have not changed are not built again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kbackup import __version__
from kbackup.errors import KbackupError
from scripts.dev import cache, tools
from scripts.dev.tools import MissingToolError

ROOT = Path(__file__).parents[2]
IMAGE = f"localhost/kbackup:{__version__}"
DEBIAN = "localhost/kbackup-base:bookworm"
"""The base where none is named: Debian 12 with its Python 3.11."""

PACKAGES = "localhost/kbackup-packages"
"""The first stage of the image."""

USER = 10001
"""The user of the image."""

_UNIFIED = Path("/sys/fs/cgroup/cgroup.controllers")
_UNIFY = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'

_MIRROR = "http://deb.debian.org/debian"
_PACKAGES = "ca-certificates,python-is-python3,python3,python3-pip,python3-venv"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_AUTHORITIES = Path("/usr/local/share/ca-certificates")


def podman(*arguments: str) -> list[str]:
    """Return a command of podman on the storage of the cache."""
    storage = cache.cache_root() / "containers"
    # What is mounted now: it is of no use after a restart of the machine, which empties this folder.
    running = Path(tempfile.gettempdir(), f"kbackup-podman-{os.getuid()}")
    argv = [tools.podman(), "--root", str(storage), "--runroot", str(running), "--runtime", "crun", *arguments]
    if os.geteuid() == 0 and not _UNIFIED.exists():
        # crun starts nothing where cgroups of both versions are mounted, though these containers need neither.
        return ["unshare", "--mount", "sh", "-c", _UNIFY, "sh", *argv]
    return argv


def build(base: str = DEBIAN) -> str:
    """Build the image on `base`, and return its name. Steps that an earlier build has done are not done again."""
    if base == DEBIAN and not _exists(DEBIAN):
        _make_debian()
    # The stage of the packages has a name of its own, so that its layers are not old ones.
    _build(base, "--target", "packages", "--tag", PACKAGES)
    _build(base, "--tag", IMAGE)
    cache.run(podman("image", "prune", "--force"), "removing old layers", "check podman's storage")
    return IMAGE


def _build(base: str, *options: str) -> None:
    argv = podman("build", "--layers", "--build-arg", f"BASE={base}", *options)
    argv += ["--file", str(ROOT / "infra/image/Dockerfile")]
    argv += ["--ignorefile", str(ROOT / "infra/image/Dockerfile.dockerignore")]
    # By chroot a build needs neither cgroups nor a network of its own, which a machine within a machine may not have.
    argv += ["--isolation", "chroot", str(ROOT)]
    cache.run(argv, "building the image", "read the output of the step that failed")


class Container:
    """How to run the image: as the pods of the chart are run, with a read-only root, a writable /tmp alone, and none of
    root's rights. The network is the machine's own.

    `user` may be one that the image has no account for. `env` and `mounts` (folder: place) are of every run.
    """

    def __init__(
        self,
        user: int = USER,
        group: int = USER,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        network: str = "host",
    ) -> None:
        self._options = ["--network", network, "--user", f"{user}:{group}"]
        # podman would make an account for the user.
        self._options += ["--passwd=false"]
        for name, value in (env or {}).items():
            self._options += ["--env", f"{name}={value}"]
        for folder, place in (mounts or {}).items():
            self._options += ["--volume", f"{folder}:{place}"]

    def command(self, *arguments: str, name: str = "", entrypoint: str = "") -> list[str]:
        """Return the command line that runs the image with `arguments`, as a container called `name`."""
        options = ["--rm", "--cgroups", "disabled", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
        options += ["--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp:rw,mode=1777"]
        # podman's own limits are higher than root of a machine within a machine may set.
        options += ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=4096:4096"]
        if name:
            options += ["--name", name]
        if entrypoint:
            options += ["--entrypoint", entrypoint]
        return podman("run", *options, *self._options, IMAGE, *arguments)


def size() -> int:
    """Return the bytes of the image's layers, unpacked."""
    said = cache.run(podman("image", "inspect", IMAGE), "inspecting the image", "build it: make image")
    (found,) = json.loads(said)
    return int(found["Size"])


def _exists(name: str) -> bool:
    return subprocess.run(podman("image", "exists", name), check=False).returncode == 0


def _make_debian() -> None:
    """Make the base from Debian's packages, with the sources of packages and the certificates of this machine: a build
    fetches what this machine may fetch."""
    with tempfile.TemporaryDirectory(prefix="kbackup-base-") as folder:
        root = Path(folder, "root")
        argv = [tools.debootstrap(), "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root), _MIRROR]
        cache.run(argv, "making a base of Debian's packages", "check that Debian's packages can be fetched")
        if _SOURCES.exists():
            (root / "etc/apt/sources.list").unlink()
            shutil.copy(_SOURCES, root / "etc/apt/sources.list.d")
        if _AUTHORITIES.exists():
            shutil.copytree(_AUTHORITIES, root / "usr/local/share/ca-certificates", dirs_exist_ok=True)
            chroot = ["chroot", str(root), "update-ca-certificates"]
            cache.run(chroot, "adding this machine's certificates to the base", "look into its output")
        shutil.rmtree(root / "var/cache/apt/archives")
        packed = Path(folder, "root.tar")
        cache.run(["tar", "-C", str(root), "-cf", str(packed), "."], "packing the base", "check that the disk has room")
        cache.run(podman("import", str(packed), DEBIAN), "importing the base", "check podman's storage")


def main(arguments: list[str]) -> int:
    name = build(*arguments[:1])
    print(f"{name}: {size() >> 20:,} MiB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
