"""Long runs that try to break kbackup: what is too long for a test."""
