"""Data sets of the command line: reading, splitting, augmenting, corrupting.

Missing, damaged and other data than were asked for raise a `DataError` that names them.
"""
