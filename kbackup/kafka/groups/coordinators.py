"""Names of groups that do not exist, to ask every coordinator of groups whether it is ready.

A broker that has just started lists no group of a partition that it does not lead yet, and reports no error. Asked for
the offsets of one group, it answers with an error until it has loaded the group's partition.
"""

from __future__ import annotations

from itertools import count

OFFSETS_TOPIC = "__consumer_offsets"


def probe_groups(partitions: int) -> list[str]:
    """Return a group name for each of the `partitions` of `OFFSETS_TOPIC`, in their order."""
    names: dict[int, str] = {}
    numbers = count()
    while len(names) < partitions:
        name = f"kbackup-probe-{next(numbers)}"
        names.setdefault(partition_of(name, partitions), name)
    return [names[partition] for partition in range(partitions)]


def partition_of(group: str, partitions: int) -> int:
    """Return the partition that brokers keep a group in: of the hash that Java gives an ASCII name."""
    code = 0
    for byte in group.encode("ascii"):
        code = (code * 31 + byte) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions
