"""Apply archived records to a target, exactly once."""
