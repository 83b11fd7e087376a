"""The pages: each reads the archive as of a restore point, and renders a template."""
