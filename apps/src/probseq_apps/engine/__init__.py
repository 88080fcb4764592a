"""Training: one loop for all methods; `config`, `files` and `signals` load no torch."""
