"""inferd.toml: its models, its loading, its errors and its reload."""
