"""All that a flag can set, and the recipes; importable without torch."""
