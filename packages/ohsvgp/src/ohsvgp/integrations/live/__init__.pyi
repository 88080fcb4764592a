from .stream import LEVEL, LiveStream

__all__ = ["LEVEL", "LiveStream"]
