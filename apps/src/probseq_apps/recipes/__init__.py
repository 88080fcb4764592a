"""Complete settings by name; importable without torch."""
