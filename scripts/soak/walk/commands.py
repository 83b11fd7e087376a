"""kbackup's commands as a walk runs them: in this process on one Spark session, or in processes that are killed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from kbackup.cli import main
from kbackup.config import Config
from kbackup.store.options import S3Options
from tests.faults.dying import Wish
from tests.faults.process import Ended, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WITH_SPARK = ("backup", "restore", "repair", "verify")


@dataclass(frozen=True)
class Outcome:
    """The line of a command, its exit code, its JSON document, and what it said on stderr."""

    line: str
    code: int
    document: dict[str, Any]
    err: str

    def __str__(self) -> str:
        return f"kbackup {self.line} ended with {self.code}\n{self.err}\n{json.dumps(self.document)[:2000]}"


@dataclass
class Commands:
    """`folder` is for configuration and for what killed commands leave."""

    bootstrap: str
    s3: S3Options
    env: Mapping[str, str]
    folder: Path
    spark: Callable[[], SparkSession]
    _killed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._config.write_text(
            f"""
            [source]
            "bootstrap.servers" = "{self.bootstrap}"
            [target]
            "bootstrap.servers" = "{self.bootstrap}"
            {self._section()}
            [backup]
            segment_bytes = 4096
            split_records = 60
            pack_records = 40
            [spark]
            master = "local[2]"
            """
        )

    def _section(self) -> str:
        if not self.s3.endpoint_url:
            return ""
        names = ("endpoint_url", "region", "access_key_id", "secret_access_key")
        return "\n".join(["[s3]", *(f'{name} = "{getattr(self.s3, name)}"' for name in names)])

    @property
    def _config(self) -> Path:
        return self.folder / "kbackup.toml"

    def __call__(self, *arguments: str) -> Outcome:
        out, err = io.StringIO(), io.StringIO()

        @contextmanager
        def given(config: Config, **_: object) -> Iterator[Callable[[], SparkSession]]:
            yield self.spark

        with ExitStack() as stack:
            for name in _WITH_SPARK:
                stack.enter_context(mock.patch(f"kbackup.cli.{name}.spark_session", given))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            code = main([*arguments, "--json", "--config", str(self._config)])
        return Outcome(" ".join(arguments), code, json.loads(out.getvalue()), err.getvalue())

    def kill(self, wish: Wish, *arguments: str) -> Ended:
        """Run a command in a process of its own that meets its `wish`, unless it is faster."""
        self._killed += 1
        folder = self.folder / f"killed-{self._killed}"
        return run(folder, [*arguments, "--json", "--config", str(self._config)], wish, self.env)
