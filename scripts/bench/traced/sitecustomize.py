"""Notes when a run of kbackup reaches its first and last moments, in the driver and in Spark's Python workers.

Python imports a module of this name at its start where this folder is on PYTHONPATH, also in the processes that
Spark starts: so the product runs as it is and knows nothing of it. Lines of `MOMENTS`: a name and CLOCK_MONOTONIC in
seconds, one clock for all processes of a machine.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MOMENTS = "BENCH_MOMENTS"


def moment(name: str) -> None:
    with Path(os.environ[MOMENTS]).open("a") as moments:
        moments.write(f"{name}\t{time.monotonic()}\n")


def _around(owner: Any, attribute: str, before: str = "", after: str = "") -> None:
    plain: Callable[..., Any] = getattr(owner, attribute)

    @functools.wraps(plain)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if before:
            moment(before)
        result = plain(*args, **kwargs)
        if after:
            moment(after)
        return result

    setattr(owner, attribute, noted)


def _first(owner: Any, attribute: str, name: str) -> None:
    """When the generator gives its first value."""
    plain: Callable[..., Iterator[Any]] = getattr(owner, attribute)

    @functools.wraps(plain)
    def noted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        values = plain(*args, **kwargs)
        for value in values:
            moment(name)
            yield value
            break
        yield from values

    setattr(owner, attribute, noted)


def _phases(module: Any) -> None:
    plain = module.Phases.step

    def step(self: Any, name: str) -> Any:
        moment(f"phase {name}")
        return plain(self, name)

    module.Phases.step = step


def _task(module: Any) -> None:
    _around(module, "_run_task", before="task begins")
    _around(module, "run_tasks", before="tasks sent", after="tasks done")


def _session(module: Any) -> None:
    if hasattr(module, "_Startup"):
        _around(module._Startup, "__init__", before="session begun")
        _around(module._Startup, "session", after="session ready")
    else:
        _around(module, "build_session", before="session begun", after="session ready")


def _gateway(module: Any) -> None:
    _around(module.Jvm, "__init__", before="JVM begun")
    _around(getattr(module, "_Process", module.Jvm), "connect", after="JVM up")


def _reader(module: Any) -> None:
    _around(module.RangeReader, "__init__", after="client made")
    _first(module.RangeReader, "read", "first records")


_WATCHED: dict[str, Callable[[Any], None]] = {
    "kbackup.cli.common.frame": lambda m: _around(m, "load_config", before="imported", after="configured"),
    "kbackup.cli.common.output": lambda m: _around(m.Reporter, "document", after="reported"),
    "kbackup.metrics.registry": _phases,
    "kbackup.spark.tasks": _task,
    "kbackup.kafka.consume": _reader,
    "kbackup.spark.session": _session,
    "kbackup.spark.jvm": _gateway,
    "pyspark.java_gateway": lambda m: _around(m, "launch_gateway", before="JVM begun", after="JVM up"),
    "pyspark.worker": lambda m: _around(m, "main", before="worker forked"),
}


class _Watch(MetaPathFinder):
    """Wraps the watched modules when somebody imports them, and not earlier."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _WATCHED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Wrapping(spec.loader, _WATCHED[name])
        return spec


class _Wrapping(Loader):
    """A loader that wraps what it has loaded. (A zip's loader is one for all its modules: so not by changing it.)"""

    def __init__(self, plain: Loader, wrap: Callable[[Any], None]) -> None:
        self._plain, self._wrap = plain, wrap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._plain.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._plain.exec_module(module)
        self._wrap(module)


if MOMENTS in os.environ:
    if any(argument.endswith(".daemon") for argument in sys.orig_argv):
        moment("daemon begun")
    sys.meta_path.insert(0, _Watch())
