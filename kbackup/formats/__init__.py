"""The archive's byte formats, both ways: pure functions of bytes and values; see `formats/README.md`."""
