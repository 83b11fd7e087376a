"""The command `kbackup init`: ask for a backup's configuration, try each answer, write files."""
