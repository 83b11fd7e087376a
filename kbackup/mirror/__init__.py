"""Mirrors: MirrorMaker 2 (KIP-382) by way of an archive. `flow` holds the values that all modules share."""
