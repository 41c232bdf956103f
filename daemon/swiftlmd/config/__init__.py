"""One frozen `Settings`: defaults < config.toml < environment < flags."""
