"""The checks before a migration, by subject. Each is a function of the findings, and says what it wants in its text."""
