"""The web page of `kbackup ui` (extra `web`): shows an archive, changes nothing, and loads nothing from other hosts."""
