"""Load configurations of a test's working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbackup.config import Files, Loaded, Origin, Setting, load
from kbackup.errors import UsageError

FLAG = Origin("flag", "--set")


def loaded(
    text: str = "",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    files: Files | None = None,
) -> Loaded:
    if text:
        Path("kbackup.toml").write_text(text, encoding="utf-8")
    settings = [Setting(path, value, FLAG) for path, value in (flags or {}).items()]
    return load(settings, files or Files(), environ or {})


def refused(
    text: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> UsageError:
    with pytest.raises(UsageError) as raised:
        loaded(text, environ, flags)
    assert raised.value.exit_code == 2
    return raised.value
