from .lines import LineReader
from .page import LivePage
from .stream import LiveStream

__all__ = ["LineReader", "LivePage", "LiveStream"]
