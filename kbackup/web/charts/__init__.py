"""Geometry of the charts; the templates draw them."""
