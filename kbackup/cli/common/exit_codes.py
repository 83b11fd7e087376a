"""What each exit code means; the codes themselves belong to the classes in `kbackup.errors`."""

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "failed, or refused by a check before anything was written",
    2: "a flag, a key or a value that can't be used",
    3: "done, but with a loss, a difference, or something that could not be set, which the report names",
    10: "nothing there that can be read as an archive, or the archive is of another cluster or not the expected one, "
    "or a finished restore is not there as its id says, or a cluster is not ready to migrate or can't go back",
    11: "another writer holds the archive's lease, or took it over",
    12: "the key of an encrypted archive is wrong or missing",
    13: "verification failed: bytes are not what the format or the manifest says, or the sides of a migration differ",
    14: "source, target, store or schema registry can't be reached or denies access",
    130: "interrupted by SIGINT or SIGTERM",
}
