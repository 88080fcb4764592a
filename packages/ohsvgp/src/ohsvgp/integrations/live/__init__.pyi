from .stream import LiveStream

__all__ = ["LiveStream"]
