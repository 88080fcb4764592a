"""Aligned text tables; columns that don't fit the width go into further blocks below."""

from collections.abc import Sequence

_GAP = 2


def aligned_blocks(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Align a table, first column to the left and the others to the right.

    Args:
        heads: heads of the columns.
        rows: cells; each row as long as the heads.
        width: letters that a line may have; a block has one column of numbers at least.

    Returns:
        Blocks with an empty line between; each repeats the first column.
    """
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    blocks: list[str] = []
    start = 1
    while start < len(heads):
        end, used = start, widths[0]
        while end < len(heads) and (end == start or used + _GAP + widths[end] <= width):
            used += _GAP + widths[end]
            end += 1
        lines = [_line(row, widths, start, end) for row in (heads, *rows)]
        lines.insert(1, "─" * used)
        blocks.append("\n".join(lines))
        start = end
    return "\n\n".join(blocks)


def _line(row: Sequence[str], widths: Sequence[int], start: int, end: int) -> str:
    numbers = (row[place].rjust(widths[place] + _GAP) for place in range(start, end))
    return f"{row[0].ljust(widths[0])}{''.join(numbers)}".rstrip()
