"""Keys and values by their schemas: bytes to what JSON can say, with the field's own libraries (extra `schemas`)."""
