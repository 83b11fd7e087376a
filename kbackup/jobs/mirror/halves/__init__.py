"""The halves of a mirror: `take` backs a source up, `apply` writes to a target, `take.run_together` runs both."""
