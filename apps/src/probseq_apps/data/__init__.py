"""Data sets of the command line: reading, splitting, augmenting, corrupting."""
