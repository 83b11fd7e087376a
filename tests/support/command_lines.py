"""Command lines, parsed by kbackup's own parser without running them."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup.cli import cli
from kbackup.cli.common.frame import FlagValues
from kbackup.config import Config, load


def parsed_command(words: Sequence[str]) -> Config:
    """Return the configuration that the words of a command line set, without a file and variables."""
    assert words[0] == "kbackup"
    state = FlagValues(json="--json" in words, debug="--debug" in words)
    with cli.make_context("kbackup", list(words[1:]), obj=state) as context:
        command = cli.get_command(context, words[1])
        assert command is not None
        with command.make_context(words[1], list(words[2:]), parent=context, obj=state):
            assert not state.json
            assert not state.debug
            return load(state.settings, environ={}).config
