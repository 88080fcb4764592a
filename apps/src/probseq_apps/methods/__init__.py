"""Models of `classify` and `regress`."""
