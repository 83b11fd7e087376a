"""Geometry of the charts; the templates draw it."""
