"""Consumer groups of `kbackup serve`: a coordinator in memory.

The state machines (`classic`, `consumer`), the committed offsets (`offsets`) and the `coordinator` that keeps them are
plain logic: they take the time as a value and know nothing of sockets, messages or asyncio. `answers` is what stands
between them and Kafka's messages.
"""
