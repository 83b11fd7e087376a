"""The metadata of a cluster from several sources: read, compared, and merged into one document."""
