from .judge import Judge
from .lines import LineReader
from .page import write_page
from .stream import LiveStream

__all__ = ["Judge", "LineReader", "LiveStream", "write_page"]
