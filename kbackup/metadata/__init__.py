"""The metadata of a cluster beside its records and its groups, whatever it was read from."""
