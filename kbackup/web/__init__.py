"""A web page to look into an archive with (extra `web`): rendered here, nothing from elsewhere; it writes nothing."""
