"""Write new files, all or none of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from kbackup.errors import UsageError

MODE = 0o600


def write_files(texts: Mapping[Path, str], replaced: Collection[Path]) -> None:
    """Write files that only their owner reads. After an error or an interrupt none of the new files is there.

    Existing files are replaced only if `replaced` names them. Raises `UsageError` if a file can't be written."""
    drafts: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for path, text in texts.items():
            drafts[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            _write(drafts[path], text)
        for path, draft in drafts.items():
            if path in replaced:
                draft.replace(path)
            else:
                made.append(path)
                _publish(draft, path, made)
    except OSError as error:
        _remove([*made, *drafts.values()])
        name = Path(error.filename2 or error.filename or "").name
        raise UsageError(
            f"{name}: {(error.strerror or str(error)).lower()}", "name a file in a folder that you can write"
        ) from error
    except BaseException:
        _remove([*made, *drafts.values()])
        raise


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _publish(draft: Path, path: Path, made: list[Path]) -> None:
    """Give a file its name, unless another file has it."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        made.remove(path)
        raise
    draft.unlink()


def _remove(paths: Collection[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
