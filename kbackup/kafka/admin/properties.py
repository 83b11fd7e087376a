"""Properties of a cluster that its admin client has for itself: carried among those of the other clients."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = "kbackup.admin."


def with_admin(properties: Mapping[str, str], admin: Mapping[str, str]) -> dict[str, str]:
    """Return `properties` that carry those of the admin client."""
    return {**properties, **{f"{_PREFIX}{name}": value for name, value in admin.items()}}


def without_admin(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the other clients."""
    return {name: value for name, value in properties.items() if not name.startswith(_PREFIX)}


def admin_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties of the admin client: those of the other clients where it has none for itself."""
    own = {name.removeprefix(_PREFIX): v for name, v in properties.items() if name.startswith(_PREFIX)}
    return own or properties
