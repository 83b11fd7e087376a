"""Positions that the target has forgotten though the flow's offset map knows them.

A broker drops the offsets of a group without members after `offsets.retention.minutes`. The map says what was applied;
the target says whether a transaction whose note is gone was committed.
"""

from __future__ import annotations
