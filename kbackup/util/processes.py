"""Processes that this one has started."""

from __future__ import annotations

import subprocess

_PATIENCE = 2.0  # s, for a process whose streams are closed


def close_process(process: subprocess.Popen[bytes]) -> None:
    """Close the streams of a process that ends with them, and wait for its end; kill it where it stays."""
    try:
        process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
