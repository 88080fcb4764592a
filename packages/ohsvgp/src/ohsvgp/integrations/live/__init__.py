"""A stream of lines that is learned, forecast and saved as it comes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
