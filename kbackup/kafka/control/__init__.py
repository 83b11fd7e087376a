"""Ask brokers about everything but records, and change it: Kafka's own messages over connections of our own.

Read in this order: `settings` (where and how to connect, by `values` of librdkafka's properties), `tls`, `login`,
`tokens` and `oidc` (who we are), `deadline`, `sockets` and `connection` (one broker), `errors` (what may go wrong, and
what mends it), `router` (which broker is asked, and how often). Above them
is a module for each subject: topics, configs, offsets, groups, access, logs. `cluster` brings them together.
"""
