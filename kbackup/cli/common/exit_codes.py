"""The meaning of each exit code; the codes themselves belong to the classes in `kbackup.errors`."""

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "error, or refused by a check before any write",
    2: "a flag, key or value is invalid",
    3: "done, with a loss, a difference, a setting that could not be set or a finding of status; "
    "the report names each",
    10: "no archive, not the expected archive or cluster, a finished restore that the target no "
    "longer holds, or a cluster that is not ready to migrate or can't go back",
    11: "another writer holds the archive's lease, or took it over",
    12: "the key of an encrypted archive is wrong or missing",
    13: "damage: bytes differ from format or manifest; or the sides of a migration differ",
    14: "source, target, store or schema registry can't be reached or denies access",
    130: "interrupted by SIGINT or SIGTERM",
}
