"""infra/docs/json/*.schema.json: what commands print with `--json`, from the models of their reports."""
