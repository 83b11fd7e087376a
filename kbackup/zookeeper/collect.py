"""Parse the znodes of a part one by one; those that can't be parsed or read are named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from kbackup.errors import CorruptError
from kbackup.metadata.entities import MetadataPartName, NotCarried
from kbackup.metadata.parts import not_carried_entry
from kbackup.util.text import shorten
from kbackup.zookeeper.tree import Tree

T = TypeVar("T")
_NAMED = 3


@dataclass(frozen=True)
class Collector:
    """`failed` and `denied`: by part, what is not carried of it, each with the path of its znode."""

    tree: Tree
    failed: dict[MetadataPartName, list[str]] = field(default_factory=lambda: defaultdict(list))
    denied: dict[MetadataPartName, list[str]] = field(default_factory=lambda: defaultdict(list))

    def each(
        self, part: MetadataPartName, paths: Iterable[str], parse: Callable[[str, bytes], Iterable[T]]
    ) -> tuple[T, ...]:
        """All that `parse` finds in the znodes at `paths`; those that don't exist have nothing."""
        return tuple(entity for path in paths for entity in self._parse(part, path, parse))

    def _parse(
        self, part: MetadataPartName, path: str, parse: Callable[[str, bytes], Iterable[T]]
    ) -> Iterable[T]:
        if path in self.tree.denied:
            self.denied[part].append(path)
        if path not in self.tree.znodes:
            return ()
        try:
            return tuple(parse(path, self.tree.znodes[path]))
        except CorruptError as error:
            self.failed[part].append(error.message)
            return ()

    def below(
        self, part: MetadataPartName, root: str, parse: Callable[[str, bytes], Iterable[T]], levels: int = 1
    ) -> tuple[T, ...] | None:
        """Collect from the znodes `levels` below `root`; None where our user may not read `root` itself."""
        if root in self.tree.denied:
            self.denied[part].append(root)
            return None
        for level in range(1, levels):  # what is below a denied znode is not even listed
            self.each(part, (p for p in self.tree.below(root, level) if p in self.tree.denied), parse)
        return self.each(part, self.tree.below(root, levels), parse)

    def not_carried(self) -> Iterator[NotCarried]:
        """One entry for each part that is not whole."""
        for part in sorted(self.failed.keys() | self.denied.keys()):
            denied = sorted(set(self.denied[part]))
            lines = [f"znode {path} may not be read" for path in denied] + self.failed[part]
            yield not_carried_entry(part, "denied" if denied else "failed", shorten(lines, _NAMED))
