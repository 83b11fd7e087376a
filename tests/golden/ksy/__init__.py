"""Readers compiled from `formats/*.ksy` by kaitai-struct-compiler (Python target)."""
