"""Measure whole commands, from start to exit: kbackup's, and those of other tools beside it."""
