"""Arbitrary bytes into all that reads files of an archive: it must read them, or raise a `KbackupError`."""
