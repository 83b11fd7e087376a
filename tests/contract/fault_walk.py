"""Random reads and writes of a store whose connections and answers fail at random, held against what it must hold."""

from __future__ import annotations

import random
from contextlib import suppress

from kbackup.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, UnreachableError
from kbackup.store import Store
from tests.contract.proxy import Proxy

_KEYS = [f"walk/{number}" for number in range(12)]
_LARGE = 1 << 20  # of a part
_SOME = (OutcomeUnknownError, UnreachableError)


class FaultWalk:
    """`through` is the store behind `proxy`, `direct` the same without it. A step with a fault may end with an error
    that says so; what is there afterwards is what was there before, or what was written, and nothing else."""

    def __init__(self, through: Store, direct: Store, proxy: Proxy, seed: int, part: int) -> None:
        self._through, self._direct, self._proxy = through, direct, proxy
        self._random = random.Random(seed)
        self._part = part
        self._held: dict[str, bytes] = {}
        self.faults = self.failed = 0

    def step(self) -> None:
        key = self._random.choice(_KEYS)
        write = self._random.choice([self._put_new, self._put, self._replace, self._upload, self._delete])
        self._harm()
        self._change(key, self._data(write == self._upload), write)
        self._harm()
        self._look(self._random.choice(_KEYS))

    def _harm(self) -> None:
        """Let the next answers be lost, cut, or those of a store that is busy."""
        proxy, times = self._proxy, self._random.choice([1, 1, 1, 2])
        kind = self._random.choice(["lose", "cut", "busy", "busy after all"])
        if kind == "lose":
            proxy.lose_answers("", times)
        elif kind == "cut":
            proxy.cut_answers("", *(self._random.randrange(1, 900) for _ in range(times)))
        else:
            status = self._random.choice([500, 503])
            proxy.answer_instead("", status, handled=(kind == "busy after all",) * times)
        self.faults += times

    def _calm(self) -> None:
        self.faults -= self._proxy.answers_to_cut + self._proxy.answers_to_replace
        self._proxy.cut_answers("")
        self._proxy.answer_instead("", 503, handled=())

    def _data(self, large: bool) -> bytes:
        size = self._random.choice([2 * self._part + 7, self._part + 1]) if large and self._random.random() < 0.1 else 0
        return self._random.randbytes(size or self._random.randrange(1, 2000))

    def _change(self, key: str, data: bytes, write: object) -> None:
        before, after = self._held.get(key), data
        try:
            after = write(key, data)  # type: ignore[operator]
            possible = [after]
        except AlreadyExistsError:
            assert before is not None, f"{key} was not there"
            possible = [before]
        except _SOME:
            self.failed += 1
            possible = [before, None if write == self._delete else data]
        self._calm()
        now: bytes | None = None
        with suppress(NotFoundError):
            now = self._direct.get(key)
        assert now in possible, f"{key}: {write}: {now and now[:20]!r} is there"
        if now is None:
            self._held.pop(key, None)
        else:
            self._held[key] = now

    def _put_new(self, key: str, data: bytes) -> bytes:
        self._through.put_new(key, data)
        assert key not in self._held, f"{key} was created over another object"
        return data

    def _put(self, key: str, data: bytes) -> bytes:
        self._through.put(key, data)
        return data

    def _replace(self, key: str, data: bytes) -> bytes | None:
        if key not in self._held:
            return None
        self._through.replace(key, data, self._direct.stat(key).etag)
        return data

    def _upload(self, key: str, data: bytes) -> bytes:
        with self._through.upload(key) as upload:
            for at in range(0, len(data), _LARGE):
                upload.write(data[at : at + _LARGE])
            upload.commit()
        assert key not in self._held, f"{key} was created over another object"
        return data

    def _delete(self, key: str, data: bytes) -> None:
        for failed in self._through.delete([key]):
            raise failed.error

    def _look(self, key: str) -> None:
        held = self._held.get(key)
        try:
            try:
                if self._random.random() < 0.5:
                    found: object = self._through.get(key)
                    assert found == held
                else:
                    assert held is None or b"".join(self._through.open_range(key, 1, len(held) - 1)) == held[1:]
            except NotFoundError:
                assert held is None, f"{key} is not there"
            assert [info.key for info in self._through.list("walk/")] == sorted(self._held)
        except _SOME:
            self.failed += 1
        self._calm()
