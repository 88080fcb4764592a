"""Live forecasts of every key of a table that streams in Spark.

The state of a key is what ``LiveStream`` writes to its file. Spark keeps it, and its checkpoints
bring it back together with the rows that come after it. Not in the papers.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ohsvgp.bases import Fading
from ohsvgp.hyperparameters import Refit
from ohsvgp.integrations.live import LiveStream
from ohsvgp.likelihoods import Gaussian
from ohsvgp.online import OnlineGP
from probseq.errors import require
from probseq.kernels import RBF, Walk

_DAY = 86_400_000_000  # microseconds
_ANSWER = (
    "line BIGINT, stamp {0}, value DOUBLE, error DOUBLE, alerts ARRAY<STRING>, refused STRING, "
    "horizon INT, ahead {0}, mean DOUBLE, low DOUBLE, high DOUBLE"
)


def live_forecasts(
    stream: Any,
    *,
    key: str,
    time: str,
    value: str,
    model: OnlineGP | None = None,
    warmup: int = 20,
    horizon: int = 1,
    step: float | None = None,
    widen: bool = True,
) -> Any:
    """Return what a ``LiveStream`` of each key answers to the rows of a table that streams.

    Rows of a key in one micro-batch are learned in the order of their stamps, equal ones in that of
    their values, and after those of earlier micro-batches. Late rows are learned or refused as late
    lines are. A row that is refused has the reason in its answer, and changes nothing else.

    Spark must keep states in RocksDB (``spark.sql.streaming.stateStore.providerClass``), and the
    Python of its workers have ``ohsvgp[spark]``. Each answer comes once where the sink of the query
    is one that can do so, such as files, and its checkpoint is kept.

    Args:
        stream: DataFrame that streams.
        key: column that tells the streams apart.
        time: column of timestamps, dates or numbers.
        value: column of numbers; null and NaN are missing.
        model: that of ``LiveStream``, copied for each key; None for that of ``probseq online
            live``: ``RBF(1) + Walk()`` with ``Fading(50)``, fitted anew every 50 rows.
        warmup: of ``LiveStream``, as are the next ones.
        horizon: stamps to forecast after each row.
        step: time between them.
        widen: whether intervals are widened by what the stream has shown.

    Returns:
        DataFrame of the key, "line" (its number among the rows of the key), "stamp", "value",
        "error", "alerts" and "refused" (null unless it is), and for each stamp ahead a row with
        "horizon", "ahead" (the stamp, to the second), "mean", "low" and "high": one row with nulls
        there if there are no forecasts.

    Raises:
        ValueError: no such columns, columns of another kind, or what ``LiveStream`` refuses.
        MissingExtraError: there is no pyspark.
    """
    functions = require("pyspark.sql.functions", extra="spark", distribution="ohsvgp")
    types = require("pyspark.sql.types", extra="spark", distribution="ohsvgp")
    kinds: dict[str, Any] = {field.name: field.dataType for field in stream.schema.fields}
    for name in (key, time, value):
        if name not in kinds:
            raise ValueError(f"stream must have a column {name!r}, got {list(kinds)}")
    if not isinstance(kinds[value], types.NumericType):
        raise ValueError(f"column {value!r} must hold numbers, got {kinds[value].typeName()}")
    if model is None:
        kernel = RBF(1) + Walk()
        model = OnlineGP(kernel, Gaussian(0.1), Fading(50), refit=Refit("every:50"))
    # To workers and back stamps are numbers: their dates would be in the time zone of a machine.
    column = functions.col(time)
    match kinds[time]:
        case types.TimestampType():
            number, back = functions.unix_micros(column), functions.timestamp_micros
        case types.DateType():
            number = functions.unix_date(column).cast("bigint") * _DAY

            def back(name: str) -> Any:
                day = functions.floor(functions.col(name) / _DAY)
                return functions.date_from_unix_date(day.cast("int"))

        case types.NumericType():
            number, back = column.cast("double"), functions.col
        case kind:
            raise ValueError(
                f"column {time!r} must hold timestamps, dates or numbers, got {kind.typeName()}"
            )
    calendar = not isinstance(kinds[time], types.NumericType)
    options = {"warmup": warmup, "horizon": horizon, "step": step, "widen": widen}
    answers = _Answers(model, calendar, options)
    answers.begin()  # what is refused is refused here
    schema = types.StructType([types.StructField("key", kinds[key])])
    for field in types.StructType.fromDDL(_ANSWER.format("BIGINT" if calendar else "DOUBLE")):
        schema.add(field)
    named = functions.col(key).alias("key"), number.alias("stamp")
    rows = stream.select(*named, functions.col(value).cast("double").alias("value"))
    answered = rows.groupBy("key").transformWithState(answers, schema, "append", "none")
    take = {name: functions.col for name in schema.names} | {"stamp": back, "ahead": back}
    return answered.select(
        *(take[name](name).alias(key if name == "key" else name) for name in schema.names)
    )


class _Answers:
    """Spark's stateful processor.

    Stamps of a calendar are microseconds since 1970.
    """

    def __init__(self, model: OnlineGP, calendar: bool, options: dict[str, Any]) -> None:
        self._model, self._calendar, self._options = model, calendar, options

    def begin(self) -> tuple[LiveStream, bytes]:
        """Return the stream that takes up the state of one key after the other, and a new state."""
        stream = LiveStream(copy.deepcopy(self._model), **self._options)
        return stream, stream.to_bytes()

    def init(self, handle: Any) -> None:
        """Begin on a worker."""
        torch.set_num_threads(1)
        self._row = require("pyspark.sql", extra="spark", distribution="ohsvgp").Row
        self._state = handle.getValueState("stream", "bytes BINARY")
        self._stream, self._new = self.begin()

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Answer the rows of a key in one micro-batch."""
        state = self._state.get() if self._state.exists() else None
        self._stream.load_bytes(self._new if state is None else bytes(state[0]))
        for row in sorted(rows, key=_order):
            yield from self._answers(key[0], row["stamp"], row["value"])
        self._state.update((self._stream.to_bytes(),))

    def close(self) -> None:
        """End on a worker."""

    def _answers(self, key: Any, stamp: Any, value: float | None) -> Iterator[Any]:
        text = stamp
        if self._calendar and stamp is not None:
            text = np.datetime_as_string(np.datetime64(stamp, "us"))
        answer = self._stream.answer(f"{text},{value}") or {}
        shared = {"key": key, "line": answer["line"], "stamp": stamp, "value": value}
        shared |= {name: answer.get(name) for name in ("error", "alerts", "refused")}
        for ahead in answer.get("forecasts") or [{}]:
            at = ahead.get("t")
            if isinstance(at, str):
                at = int(np.datetime64(at, "us").astype(np.int64))
            ends = {name: ahead.get(name) for name in ("mean", "low", "high")}
            yield self._row(**shared, horizon=ahead.get("horizon"), ahead=at, **ends)


def _order(row: Any) -> tuple[Any, Any]:
    """Return what the rows of a micro-batch are sorted by; null and NaN come first."""
    numbers = (row["stamp"], row["value"])
    stamp, value = (-math.inf if x is None or math.isnan(x) else x for x in numbers)
    return stamp, value
