"""Methods of a store that write: no page calls one."""

from __future__ import annotations

WRITES = {"put", "put_new", "replace", "upload", "delete"}
