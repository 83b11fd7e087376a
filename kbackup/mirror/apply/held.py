"""Remote topics that are held back: why their records wait, and when each is tried again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kbackup.errors import KbackupError


class RefusedTopic(NamedTuple):
    """A remote topic that is held back, and why."""

    remote: str
    reason: str


_FIRST_PAUSE, _LAST_PAUSE = 5.0, 300.0  # s

_TOOK = re.compile(r" \(after \d+ ms\)")
"""librdkafka's words that differ in every attempt."""


def reason_of(error: KbackupError) -> str:
    """Return why a topic is held back, in the same words as long as the reason is the same: each new text is reported
    again."""
    return _TOOK.sub("", str(error))


@dataclass
class HeldTopic:
    """`due` is when the topic is tried again, on the clock of `HeldTopics`."""

    reason: str
    pause: float
    due: float


@dataclass
class HeldTopics:
    """The remote topics that are held back, from round to round. `now` is a clock in seconds.

    A topic is tried again after a pause that doubles with each attempt, since an attempt costs an aborted
    transaction. While a topic is known here it goes in transactions of its own, so that its next refusal concerns no
    other topic."""

    now: Callable[[], float] = time.monotonic
    _topics: dict[str, HeldTopic] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Return the reason of each topic that is held back, also of topics that are due."""
        return {remote: held.reason for remote, held in self._topics.items()}

    @property
    def due(self) -> frozenset[str]:
        """Return the topics that the next round tries again."""
        at = self.now()
        return frozenset(remote for remote, held in self._topics.items() if held.due <= at)

    @property
    def waiting(self) -> frozenset[str]:
        """Return the topics that the next round leaves out."""
        return frozenset(self._topics) - self.due

    def suspect(self, remote: str, reason: str) -> None:
        """Take over a topic that another process held back. It is due at once: the reason may be gone since."""
        self._topics[remote] = HeldTopic(reason, _FIRST_PAUSE, self.now())

    def hold(self, remote: str, reason: str) -> None:
        """Note that the target refused a topic just now."""
        known = self._topics.get(remote)
        pause = _FIRST_PAUSE if known is None else min(2 * known.pause, _LAST_PAUSE)
        self._topics[remote] = HeldTopic(reason, pause, self.now() + pause)

    def release(self, remotes: Iterable[str]) -> None:
        """Forget topics that went through, or that the flow does not have any more."""
        for remote in remotes:
            self._topics.pop(remote, None)

    def try_again(self, remotes: Iterable[str]) -> None:
        """Make topics due at once: something about them has changed in the target."""
        for remote in remotes:
            if remote in self._topics:
                self._topics[remote].due = self.now()


class RoundRefusals:
    """What is held back in one round, and what the round learns about it. `on_trial` are the topics whose time has come
    to be tried again: they go in transactions of their own. `withheld` says by remote topic why the round is not to
    apply it."""

    def __init__(self, held: HeldTopics, withheld: Mapping[str, str]) -> None:
        self._held = held
        self._missing = dict(withheld)
        self._refused: dict[str, str] = {}
        # Both are looked up once: a topic whose pause ends in the middle of a round must not be waiting in one phase
        # and on trial in the next.
        self._waiting = held.waiting
        self.on_trial = held.due - withheld.keys()

    @property
    def left_out(self) -> frozenset[str]:
        """Return the remote topics whose records the rest of the round does not touch."""
        return self._waiting | self._missing.keys() | self._refused.keys()

    def add_missing(self, reasons: Mapping[str, str]) -> None:
        """Note topics, or partitions of theirs, that the target did not create or does not show. Each round asks
        again."""
        self._missing |= reasons

    def add_refused(self, refused: Iterable[RefusedTopic]) -> None:
        """Note topics whose records or positions were refused. A topic that several slots report has one reason: the
        first one by slot."""
        for each in refused:
            self._refused.setdefault(each.remote, each.reason)

    def end_round(self, remotes: Collection[str]) -> dict[str, str]:
        """Plan when the refused topics are tried again, and forget those that went through. Return why each of the
        flow's `remotes` waits, if it does."""
        for remote, reason in self._refused.items():
            self._held.hold(remote, reason)
        # A trial that was left out for another reason has proved nothing.
        self._held.release(self.on_trial - self.left_out)
        self._held.release(self._held.reasons.keys() - set(remotes))
        reasons = self._held.reasons | self._missing
        return {remote: reasons[remote] for remote in sorted(reasons) if remote in remotes}
