"""Admin requests that confluent-kafka has no call for, by kafka-python's protocol classes over a connection of our own.

Client quotas, delegation tokens, ACLs on tokens and users, the cluster-wide default of brokers' configs, subscriptions
to client metrics, finalized features and registrations. Every broker answers for the whole cluster.
"""
