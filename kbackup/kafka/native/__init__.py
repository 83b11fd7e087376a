"""Records between librdkafka and their encoded form without a Python object a record, by compiled kernels; and whatever
else of librdkafka's C functions confluent-kafka does not bind.

`library` has the functions, and `property_check` asks librdkafka about properties: both load everywhere. The other
modules are the kernels, which need numba; `compiled` loads them.
"""
