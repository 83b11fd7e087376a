"""Keys and values by their schemas: decoded to JSON by the field's own libraries (extra `schemas`)."""
