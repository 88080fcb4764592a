"""All that a flag can set, and recipes; importable without torch and numpy.

The fields' docstrings are the command line's help.
"""
