"""The steps of a walk that expire, pin and label restore points."""

from __future__ import annotations

from datetime import datetime

from scripts.soak.walk.sites import WrongError, check_list, listed, must, reconcile
from scripts.soak.walk.state import WalkState


class RetentionSteps(WalkState):
    """Expire, undo, sweep, pin and label."""

    def expire_points(self) -> str:
        site, keep = self._any_main_or_copy(0.1), self._random.randint(1, 5)
        stay = site.book.retained(keep)
        outcome = must(self.commands("expire", site.url, "--keep-last", str(keep), "--confirm"), 0)
        if outcome.document["expiration"] is not None:
            site.book.expire(keep, None)
        elif stay != set(site.book.points):
            raise WrongError(
                f"restore points {sorted(set(site.book.points) - stay)} did not expire: {outcome}"
            )
        check_list(self.commands, site)
        return f"{len(stay)} stay in {site.url}"

    def expire_records(self) -> str:
        site = self._any_main_or_copy(0.1)
        newest = listed(self.commands, site)[site.book.newest]
        stamps = [r.timestamp for v in site.book.views.values() for _, r in site.book.offsets(v)]
        if not stamps:
            return ""
        committed = int(datetime.fromisoformat(newest["committed_at"]).timestamp() * 1000)
        seconds = (committed - self._random.choice(sorted(stamps)[: len(stamps) // 2 + 1])) // 1000
        outcome = must(self.commands("expire", site.url, "--older-than", f"{seconds}s", "--confirm"), 0, 1)
        if outcome.code == 1:
            if "every record of the newest" not in outcome.err:
                raise WrongError(str(outcome))
            return "refused"
        if outcome.document["expiration"] is not None:
            site.book.expire(None, committed - seconds * 1000)
        check_list(self.commands, site)
        return f"{outcome.document['records']} records of {site.url}"

    def sweep(self) -> str:
        site = self._any_main_or_copy(0.3)
        outcome = must(self.commands("expire", site.url, "--grace", "0s", "--confirm"), 0)
        site.book.expirations, site.shaken = [], False
        check_list(self.commands, site)
        return f"{outcome.document['deleted']} objects of {site.url} deleted"

    def undo(self) -> str:
        site = self._any_main_or_copy(0.1)
        outcome = self.commands("expire", site.url, "--undo")
        if site.shaken:
            must(outcome, 0, 1)
            reconcile(self.commands, site)
            return f"exit code {outcome.code}"
        if site in self.copies or not site.book.expirations:
            must(outcome, 1)
            return "refused"
        must(outcome, 0)
        site.book.undo()
        self._repair(site)  # objects that the expired restore points alone need may be damaged
        check_list(self.commands, site)
        return f"restore points {outcome.document['restore_points']}"

    def pin(self) -> str:
        number = self._random.choice(sorted(self._main.book.points))
        must(self.commands("keep", "--archive", self._main.url, str(number)), 0)
        self._main.book.pins.add(number)
        check_list(self.commands, self._main)
        return str(number)

    def release(self) -> str:
        book = self._main.book
        number = self._random.choice(sorted(book.pins or book.points))
        code = 0 if number in book.pins else 2
        must(self.commands("release", "--archive", self._main.url, str(number)), code)
        book.pins.discard(number)
        check_list(self.commands, self._main)
        return str(number)

    def label(self) -> str:
        book, name = self._main.book, self._random.choice(("before", "after", "between"))
        if name in book.labels and self._random.random() < 0.4:
            must(self.commands("label", "--archive", self._main.url, "--remove", name), 0)
            del book.labels[name]
            return f"{name} removed"
        number = self._random.choice(sorted(book.points))
        must(self.commands("label", "--archive", self._main.url, str(number), name), 0)
        book.labels[name] = number
        check_list(self.commands, self._main)
        return f"{number} is {name}"
