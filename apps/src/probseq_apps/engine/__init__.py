"""Training: one loop for all methods, with checkpoints that resume bit for bit.

Nothing is imported here: `config` must stay importable without torch, for the command line.
"""
