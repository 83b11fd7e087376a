"""Stores: where an archive's objects are. `base` states what every store promises."""

from kbackup.store.base import Store
from kbackup.store.registry import StoreOptions, open_store
from kbackup.store.s3 import S3Options

__all__ = ["S3Options", "Store", "StoreOptions", "open_store"]
