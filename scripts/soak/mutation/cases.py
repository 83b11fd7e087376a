"""Many cases by a seed; each is its own seed, so that one can be run again alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from scripts.soak.mutation.change import change
from scripts.soak.mutation.judge import inspect, judge
from scripts.soak.mutation.sample import samples


@dataclass
class Result:
    """`counted` is (kind of file, outcome) -> cases."""

    seed: int
    cases: int
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        outcomes = ("refused", "found", "harmless")
        yield f"{self.cases:,} cases, seed {self.seed}"
        yield f"{'':20}" + "".join(f"{outcome:>10}" for outcome in outcomes)
        for kind in sorted({kind for kind, _ in self.counted}):
            yield f"{kind:20}" + "".join(f"{self.counted[kind, outcome]:10,}" for outcome in outcomes)
        yield from self.wrong
        yield f"{len(self.wrong)} wrong"


def run(cases: int, seed: int) -> Result:
    result = Result(seed, cases)
    made = [(sample, inspect(sample.objects, sample)) for sample in samples()]
    for _, whole in made:
        assert not whole.findings, whole.findings
        assert all(answer.error is None for answer in whole.answers.values()), whole.answers
    for number in range(cases):
        sample, whole = made[number % len(made)]
        changed = change(sample, random.Random(f"{seed} {number}"))
        case = f"case {number} of seed {seed}: {changed.way} {', '.join(changed.keys)}"
        try:
            outcome, wrong = judge(changed, whole, inspect(changed.objects, sample))
        except Exception as error:  # noqa: BLE001 (whatever comes out is what is looked for)
            outcome, wrong = "traceback", [f"{type(error).__name__}: {error}"]
        result.counted[changed.kind, outcome] += 1
        result.wrong += [f"{case}: {what}" for what in wrong]
    return result
