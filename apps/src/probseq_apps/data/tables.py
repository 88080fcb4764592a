"""Tables of points with several inputs, and which rows are for testing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64

from probseq_apps.data.names import CSV_PREFIX, DataError, data_folder, unknown_name_message
from probseq_apps.data.series import existing_file, parse_number
from probseq_apps.data.tabular import csv_columns, read_parquet_table

TABLE_NAMES: tuple[str, ...] = ("skillcraft", "powerplant", "two-moons")

_MOONS = 600
_MOONS_TEST = 150
_MOONS_NOISE = 0.1


@dataclass(frozen=True, eq=False)
class Table:
    """Points and targets, with one split."""

    name: str  # as on the command line
    x: Float64[np.ndarray, "n d"]  # inputs, one row a point
    y: Float64[np.ndarray, "*k n"]  # targets, or several side by side in rows
    test: Bool[np.ndarray, " n"]
    columns: tuple[str, ...]  # names of the inputs
    target_label: str  # what the targets are
    notes: tuple[str, ...] = ()  # what a reader of results must know about the data

    def __len__(self) -> int:
        return self.x.shape[0]


def load_table(name: str, data_dir: Path | None, *, seed: int) -> Table:
    """Read a table, or draw the two moons.

    The seed chooses the split of the published ones, or draws the points and the split.
    """
    if name == "two-moons":
        return _two_moons(seed)
    if name not in TABLE_NAMES:
        raise DataError(unknown_name_message("table", name, TABLE_NAMES))
    return _uci(name, data_folder(name, data_dir), seed)


def read_csv_points(
    path: Path, inputs: Sequence[str], targets: Sequence[str], *, test_share: float, seed: int
) -> Table:
    """Read points from columns of a CSV file with a header; a random share is for evaluation."""
    columns = [*((name, "input") for name in inputs), *((name, "target") for name in targets)]
    rows: list[list[float]] = []
    for line, cells in csv_columns(path, columns):
        try:
            rows.append([parse_number(cell) for cell in cells])
        except ValueError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
    if len(rows) < 2:
        raise DataError(f"{path} holds {len(rows)} points, and two are the fewest")
    values, count = np.array(rows), len(inputs)
    test = np.zeros(len(values), dtype=np.bool_)
    size = min(max(1, round(test_share * len(values))), len(values) - 1)
    test[np.random.default_rng(seed).permutation(len(values))[:size]] = True
    y = values[:, count:].T if len(targets) > 1 else values[:, count]
    return Table(f"{CSV_PREFIX}{path}", values[:, :count], y, test, (*inputs,), ", ".join(targets))


def _uci(name: str, folder: Path, seed: int) -> Table:
    path = existing_file(folder / "uci" / f"{name}.parquet")
    table = read_parquet_table(path)
    columns = {column: table.column(column).to_numpy() for column in table.column_names}
    inputs = [column for column in columns if column != "y" and not column.startswith("test")]
    splits = [column for column in columns if column.startswith("test")]
    if "y" not in columns or not inputs or not splits:
        raise DataError(f"{path} needs inputs, a target y and splits test0.., it has {[*columns]}")
    chosen = splits[seed % len(splits)]
    return Table(
        name,
        np.stack([columns[column].astype(np.float64) for column in inputs], axis=1),
        columns["y"].astype(np.float64),
        columns[chosen].astype(np.bool_),
        tuple(inputs),
        "y",
        (f"published split number seed modulo {len(splits)}",),
    )


def _two_moons(seed: int) -> Table:
    from sklearn.datasets import make_moons  # late: slow to import

    x, y = map(np.asarray, make_moons(_MOONS, noise=_MOONS_NOISE, random_state=seed))
    test = np.zeros(_MOONS, dtype=np.bool_)
    test[np.random.default_rng(seed).permutation(_MOONS)[:_MOONS_TEST]] = True
    note = f"{_MOONS} points with noise of standard deviation {_MOONS_NOISE}, drawn for each seed"
    return Table(
        "two-moons", x.astype(np.float64), y.astype(np.float64), test, ("x0", "x1"), "moon", (note,)
    )
