"""Experiments of the command line.

Nothing is imported here: `settings` and `methods` must stay importable without torch.
"""
