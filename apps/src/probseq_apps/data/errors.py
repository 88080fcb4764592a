"""The error of the data layer; needs neither torch nor numpy."""


class DataError(ValueError):
    """Data that are missing, damaged, or not what was asked for; the message names the thing."""
