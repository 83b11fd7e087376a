"""An option with former names, which keep working and which help, completion and documents leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


class AliasedOption(click.Option):
    """An option that the parser also takes under `aliases`."""

    def __init__(self, *args: Any, aliases: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.aliases = tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        if self.aliases:
            parser.add_option(self, self.aliases, dest=self.name, nargs=self.nargs)
