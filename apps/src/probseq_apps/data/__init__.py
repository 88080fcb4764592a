"""Data sets of the command line: reading, splitting, augmenting, corrupting.

This module stays free of torch, so that the command line can check names before torch is loaded.
The rest is imported from its own module: ``probseq_apps.data.sets`` loads a set by name.
"""

from probseq_apps.data.names import (
    CORRUPTION_GROUPS,
    CORRUPTION_NAMES,
    DATA_NAMES,
    IMAGE_NAMES,
    TEXT_NAMES,
    DataError,
    data_kind,
    nearest_name,
)

__all__ = [
    "CORRUPTION_GROUPS",
    "CORRUPTION_NAMES",
    "DATA_NAMES",
    "IMAGE_NAMES",
    "TEXT_NAMES",
    "DataError",
    "data_kind",
    "nearest_name",
]
