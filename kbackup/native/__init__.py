"""What is compiled by numba, or reads and writes librdkafka's memory: records between librdkafka and their encoded form
without a Python object a record, and the loop that finds schema ids in them.

`library` has librdkafka's functions, and `property_check` asks it about properties: both load everywhere, as
`contract`, `kernel` and `waiting` do. The other modules need numba; `compiled` loads them.
"""
