"""What tests and the demo run: builds, and tools that must not keep a test waiting for ever."""

from __future__ import annotations

import sys
import time

import pytest

from kbackup.errors import KbackupError
from scripts.dev.cache import run

WAITS = "import time\nprint('so far', flush=True)\ntime.sleep(60)"


def test_a_tool_that_does_not_end_is_killed_and_what_it_printed_is_shown() -> None:
    begun = time.monotonic()
    with pytest.raises(KbackupError, match=r"^the tool has not ended within 3 s:\nso far\n; read its output$"):
        run([sys.executable, "-c", WAITS], "the tool", "read its output", seconds=3)
    assert time.monotonic() - begun < 30


def test_a_tool_that_fails_is_shown_with_its_exit_code() -> None:
    with pytest.raises(KbackupError, match=r"^the tool ended with exit code 5:\nwrong\n; read its output$"):
        run([sys.executable, "-c", "print('wrong'); raise SystemExit(5)"], "the tool", "read its output", seconds=30)
