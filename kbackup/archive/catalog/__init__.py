"""The archive's state as one value: tables, the pure state and its operations, and the commit."""
