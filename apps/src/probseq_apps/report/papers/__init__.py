"""The papers' tables as data, without torch: numbers as printed, and where ours are to be found.

`thesis.toml`, `ohsvgp.toml`, `cgpt.toml` and `kep.toml` hold a table's rows as text, one line a
row. Beside them stand the metric of each column in the names of `report.json`, and the units in
which the paper prints it. A metric may hold `*` (the mean over everything that matches), `{shift}`
(the published corruptions, or else those that the program makes), `{detector}` (that of the row),
and a data set of its own in front, as in `cifar100:test/nll`. Where a run of generated images has
no `fid`, its Fréchet distance in other features is shown.

Names: `B.6`, `3.2`, `4.1` and `5.3` are the thesis' tables, `cgpt:II` is Table II of CGPT's paper,
`kep:1` is Table 1 of KEP-SVGP's.
"""

from probseq_apps.report.papers.names import resolve_name, table_names
from probseq_apps.report.papers.tables import (
    Column,
    Group,
    PaperTable,
    TableRow,
    Value,
    load_table,
)

__all__ = [
    "Column",
    "Group",
    "PaperTable",
    "TableRow",
    "Value",
    "load_table",
    "resolve_name",
    "table_names",
]
