"""Schemas of a restore point into a registry: what is missing there, writing it, and the way back."""
