"""The status of an archive: how it is, what needs attention, and the command for that."""
