"""The steps of a walk that change the cluster."""

from __future__ import annotations

from scripts.soak.walk.model import Life, Record
from scripts.soak.walk.state import DAY, WalkState

_NAMES = ("walk-a", "walk-b", "walk-c")


class ClusterSteps(WalkState):
    """Change topics, records and the group."""

    def create_topic(self) -> str:
        free = [name for name in _NAMES if name not in self.lives]
        if not free:
            return self.delete_topic()
        name = self._random.choice(free)
        self.cluster.create(name, self._random.randint(1, 3))
        self.lives[name] = Life(self._next(), name)
        return name

    def delete_topic(self) -> str:
        if len(self.lives) < 2:
            return self.create_topic()
        name = self._random.choice(sorted(self.lives))
        self.cluster.delete([name])
        del self.lives[name]
        if self._random.random() < 0.6:
            self.cluster.create(name, self._random.randint(1, 3))
            self.lives[name] = Life(self._next(), name)
            self._produce_to(name)
            return f"{name}, and created again"
        return name

    def produce(self) -> str:
        names = self._random.sample(sorted(self.lives), self._random.randint(1, len(self.lives)))
        return ", ".join(f"{self._produce_to(name)} to {name}" for name in names)

    def _produce_to(self, name: str) -> int:
        partitions = sorted(self.cluster.log_ends(name))
        rows = [
            (self._random.choice(partitions), self._record(name)) for _ in range(self._random.randint(1, 90))
        ]
        self._clock += self._random.randrange(DAY)
        self.cluster.produce(name, rows, self._random.choice((None, None, None, True, False)))
        return len(rows)

    def _record(self, topic: str) -> Record:
        number = self._next()
        self._clock += self._random.randrange(60_000)
        value = f"{topic} {number} ".encode() * self._random.randint(1, 20)
        key = self._random.choice((None, b"", b"key"))
        headers = (("h", b"1"), ("h", None)) if self._random.random() < 0.1 else ()
        return Record(self._clock, key, value, headers)

    def add_partitions(self) -> str:
        name = self._random.choice(sorted(self.lives))
        count = len(self.cluster.log_ends(name))
        if count > 3:
            return ""
        self.cluster.add_partitions(name, count + 1)
        return f"{name} has {count + 1}"

    def delete_records(self) -> str:
        name = self._random.choice(sorted(self.lives))
        ends = self.cluster.log_ends(name)
        partition = self._random.choice(sorted(ends))
        before = self._random.randint(0, ends[partition])
        start = self.cluster.log_starts(name)[partition]
        self.cluster.delete_records(name, {partition: max(before, start)})
        return f"{name}-{partition} before {max(before, start)}"

    def move_group(self) -> str:
        name = self._random.choice(sorted(self.lives))
        ends = self.cluster.log_ends(name)
        positions = {
            p: self._random.randint(0, end) for p, end in ends.items() if self._random.random() < 0.7
        }
        if positions:
            self.cluster.commit(name, positions)
        return f"{name} {positions}"
