"""Print problems of vocabulary: see the package."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scripts.dev.words.check import check_sources, read_sources
from scripts.dev.words.problem import Problem
from scripts.dev.words.progress import NOT_YET_CLEAN, is_listed, stale_entries

_DEPTH = 3
"""Counts are of folders so deep: kbackup/jobs/backup."""


def main(arguments: Sequence[str]) -> int:
    """Print what the arguments ask for; return 1 where a problem was printed."""
    sources = read_sources()
    problems = check_sources(sources)
    if "--count" in arguments:
        print(*_counts(problems), sep="\n")
        return 0
    if arguments:
        lines = [str(p) for p in problems if any(p.path.is_relative_to(argument) for argument in arguments)]
    else:
        lines = [str(p) for p in problems if not is_listed(p.path, NOT_YET_CLEAN)]
        lines += [
            f"scripts/dev/words/progress.py: {entry} is clean or gone (take it out)"
            for entry in stale_entries([p.path for p in problems], NOT_YET_CLEAN)
        ]
    for line in lines:
        print(line)
    return 1 if lines else 0


def _counts(problems: Iterable[Problem]) -> Iterator[str]:
    folders: dict[str, Counter[str]] = {}
    for problem in problems:
        folder = "/".join(problem.path.parent.parts[:_DEPTH])
        folders.setdefault(folder, Counter())[problem.rule] += 1
    for folder, rules in sorted(folders.items()):
        by_rule = ", ".join(f"{rule} {number}" for rule, number in sorted(rules.items()))
        yield f"{folder}: {rules.total()} ({by_rule})"
    yield f"{sum(rules.total() for rules in folders.values())} in all, of {len(NOT_YET_CLEAN)} folders"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
