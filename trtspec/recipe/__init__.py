"""A recipe: what `build` and `repo` are told, written down in one typed TOML file."""
