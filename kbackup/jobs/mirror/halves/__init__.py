"""The halves of a mirror: `take` backs a source up, `apply` writes an archive to a target, `together` runs both."""
