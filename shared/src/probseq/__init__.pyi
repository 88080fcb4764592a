from .calibrated import Calibrated, load_calibrated
from .calibration import calibrate
from .errors import CholeskyError, JitterWarning, MissingExtraError

__all__ = [
    "Calibrated",
    "CholeskyError",
    "JitterWarning",
    "MissingExtraError",
    "calibrate",
    "load_calibrated",
]

__version__: str
