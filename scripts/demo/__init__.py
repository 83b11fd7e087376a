"""A shop's cluster is filled, backed up twice, wiped and restored; then every partition and group is compared."""
