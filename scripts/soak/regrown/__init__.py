"""A broker whose disk is rolled back, and what a backup makes of the logs that grew again."""
