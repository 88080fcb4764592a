from .page import LivePage
from .stream import LiveStream

__all__ = ["LivePage", "LiveStream"]
