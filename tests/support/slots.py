"""Work of a mirror's slots."""

from __future__ import annotations

from kbackup.kafka.client import Properties
from kbackup.mirror.apply.slots import SlotWork
from kbackup.store.base import Store


def slot_work(store: Store, target: Properties | None = None, transaction_bytes: int = 1 << 20) -> SlotWork:
    """Return the work of slots of the flow from A to B, which has both segments and state in `store`."""
    return SlotWork(
        target=target or {}, store=store, state=store, names=("A", "B"), point=1, transaction_bytes=transaction_bytes
    )
