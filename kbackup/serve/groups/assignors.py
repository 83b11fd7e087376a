"""What assigns partitions to the members of a group of the new protocol (KIP-848): `uniform` and `range`.

An assignor gets the topics that each member has subscribed to, the number of partitions of each topic, and the present
assignment. It returns a partition for at most one member, and each partition of a subscribed topic for one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple


class AssignedPartition(NamedTuple):
    """A partition, by the id of its topic."""

    topic: bytes
    partition: int


Subscriptions = Mapping[str, frozenset[bytes]]
"""The topics of each member, by member id. Ids of topics are bytes here: a UUID is hashed and compared by Python code,
which takes several times as long, and a large group has a hundred thousand partitions."""

PartitionCounts = Mapping[bytes, int]
"""The number of partitions of each topic."""

Assignment = Mapping[str, frozenset[AssignedPartition]]
"""The partitions of each member, by member id."""

Assignor = Callable[[Subscriptions, PartitionCounts, Assignment], dict[str, frozenset[AssignedPartition]]]
"""Returns the next assignment, from the subscriptions, the topics' partitions, and the present assignment."""


def assign_ranges(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Assignment
) -> dict[str, frozenset[AssignedPartition]]:
    """Give each member a range of partitions of each topic: those of equal numbers of several topics come together."""
    assigned: dict[str, set[AssignedPartition]] = {member: set() for member in subscriptions}
    for topic, subscribers in _subscribers(subscriptions).items():
        share, rest = divmod(counts.get(topic, 0), len(subscribers))
        first = 0
        for position, member in enumerate(subscribers):
            # The first ones have one more, until all are given.
            end = first + share + (position < rest)
            assigned[member].update(AssignedPartition(topic, number) for number in range(first, end))
            first = end
    return {member: frozenset(own) for member, own in assigned.items()}


def assign_uniformly(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Assignment
) -> dict[str, frozenset[AssignedPartition]]:
    """Give each member as many partitions as the others, and leave partitions where they are as far as this allows."""
    kept = _kept(subscriptions, counts, present)
    free = _free(subscriptions, counts, kept)
    if len(set(subscriptions.values())) == 1:
        assigned = _even(kept, free)
    else:
        assigned = _balanced(_subscribers(subscriptions), kept, free)
    return {member: frozenset(own) for member, own in assigned.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by the names that clients know them by. The first is the default."""


def _subscribers(subscriptions: Subscriptions) -> dict[bytes, list[str]]:
    """Return the members of each topic, in order."""
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            subscribers[topic].append(member)
    return subscribers


def _kept(
    subscriptions: Subscriptions, counts: PartitionCounts, present: Assignment
) -> dict[str, list[AssignedPartition]]:
    """Return the partitions that may stay with their members: they exist, and their member still wants them."""
    kept: dict[str, list[AssignedPartition]] = {}
    taken: set[AssignedPartition] = set()
    for member, topics in subscriptions.items():
        own = [each for each in present.get(member, ()) if each.topic in topics and each not in taken]
        kept[member] = [each for each in own if each.partition < counts.get(each.topic, 0)]
        taken.update(kept[member])
    return kept


def _free(
    subscriptions: Subscriptions, counts: PartitionCounts, kept: Mapping[str, list[AssignedPartition]]
) -> list[AssignedPartition]:
    """Return the partitions of subscribed topics that nobody has, in order."""
    taken = {each for own in kept.values() for each in own}
    free: list[AssignedPartition] = []
    for topic in sorted(frozenset[bytes]().union(*subscriptions.values())):
        every = [AssignedPartition(topic, number) for number in range(counts.get(topic, 0))]
        free += [each for each in every if each not in taken]
    return free


def _even(
    kept: Mapping[str, list[AssignedPartition]], free: list[AssignedPartition]
) -> dict[str, list[AssignedPartition]]:
    """Share partitions among members that all want the same topics."""
    total = len(free) + sum(map(len, kept.values()))
    share, rest = divmod(total, len(kept))
    # Who has the most may have one more, so that as little as possible moves.
    in_order = sorted(kept, key=lambda member: (-len(kept[member]), member))
    assigned: dict[str, list[AssignedPartition]] = {}
    left = list(free)
    for position, member in enumerate(in_order):
        own = sorted(kept[member])
        quota = share + (position < rest)
        assigned[member] = own[:quota]
        left += own[quota:]
    left.reverse()
    for position, member in enumerate(in_order):
        quota = share + (position < rest)
        while len(assigned[member]) < quota:
            assigned[member].append(left.pop())
    return assigned


def _balanced(
    subscribers: Mapping[bytes, list[str]], kept: Mapping[str, list[AssignedPartition]], free: list[AssignedPartition]
) -> dict[str, list[AssignedPartition]]:
    """Share partitions among members that want different topics."""
    loads = {member: len(own) for member, own in kept.items()}
    holdings: dict[bytes, dict[str, set[AssignedPartition]]] = {topic: defaultdict(set) for topic in subscribers}
    for member, own in kept.items():
        for each in own:
            holdings[each.topic][member].add(each)
    free_by_topic: dict[bytes, list[AssignedPartition]] = defaultdict(list)
    for each in free:
        free_by_topic[each.topic].append(each)
    # Topics with few subscribers first: their partitions have the least choice.
    for topic in sorted(free_by_topic, key=lambda topic: (len(subscribers[topic]), topic)):
        _give_to_least(free_by_topic[topic], subscribers[topic], holdings[topic], loads)
    # Each move makes the sum of the squares of loads smaller, so this ends.
    has_moved = True
    while has_moved:
        has_moved = False
        for topic in sorted(subscribers):
            has_moved |= _balance_topic(subscribers[topic], holdings[topic], loads)
    assigned: dict[str, list[AssignedPartition]] = {member: [] for member in kept}
    for holding in holdings.values():
        for member, held in holding.items():
            assigned[member] += held
    return assigned


def _give_to_least(
    free: list[AssignedPartition], members: list[str], holding: dict[str, set[AssignedPartition]], loads: dict[str, int]
) -> None:
    """Give each free partition of a topic to the subscriber that has the fewest partitions."""
    least = [(loads[member], member) for member in members]
    heapq.heapify(least)
    for each in free:
        load, member = least[0]
        holding[member].add(each)
        loads[member] = load + 1
        heapq.heapreplace(least, (load + 1, member))


def _balance_topic(members: list[str], holding: dict[str, set[AssignedPartition]], loads: dict[str, int]) -> bool:
    """Move partitions of one topic from members with many to subscribers with fewer. Return whether any was moved."""
    movable = {member: sorted(own) for member, own in holding.items() if own}
    most = [(-loads[member], member) for member in movable]
    least = [(loads[member], member) for member in members]
    heapq.heapify(most)
    heapq.heapify(least)
    has_moved = False
    while most:
        giver = most[0][1]
        taker = least[0][1]
        # An entry is old if its member has given or taken since: it is put right, and looked at again.
        if -most[0][0] != loads[giver]:
            heapq.heapreplace(most, (-loads[giver], giver))
        elif least[0][0] != loads[taker]:
            heapq.heapreplace(least, (loads[taker], taker))
        elif not movable[giver]:
            heapq.heappop(most)
        elif loads[giver] - loads[taker] < 2:
            # Who has the most can't give: so nobody can.
            break
        else:
            moved = movable[giver].pop()
            holding[giver].remove(moved)
            holding[taker].add(moved)
            loads[giver] -= 1
            loads[taker] += 1
            has_moved = True
    return has_moved
