"""Live forecasts of the keys of a table that streams in Spark."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ohsvgp import Gaussian, LegS, OnlineGP, Refit
from ohsvgp.integrations import spark
from ohsvgp.integrations.live import LiveStream
from probseq.kernels import RBF

OPTIONS: dict[str, Any] = {"warmup": 3, "horizon": 2, "step": None, "widen": True}
KEYS, FILES = 1000, 3
SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.integrations.spark import live_forecasts
from probseq.kernels import RBF

folder = Path(sys.argv[1])
settings = {
    "spark.driver.host": "127.0.0.1",
    "spark.local.dir": str(folder / "local"),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming"
    ".state.RocksDBStateStoreProvider",
    "spark.ui.enabled": "false",
}
session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
lines = session.readStream.schema("name STRING, t DOUBLE, y DOUBLE")
lines = lines.option("maxFilesPerTrigger", 1).json(str(folder / "lines"))
answers = live_forecasts(
    lines, key="name", time="t", value="y", warmup=3, horizon=2,
    model=OnlineGP(RBF(1), Gaussian(0.1), LegS(8), rebase="grow:1.5"),
)
writer = answers.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
writer.trigger(availableNow=True).start(str(folder / "answers"), "json").awaitTermination()
rows = session.read.schema(answers.schema).json(str(folder / "answers"))
(folder / "all.json").write_text("\\n".join(rows.toJSON().collect()))
"""


class Line(NamedTuple):
    """A row as Spark hands it over."""

    stamp: float | None
    value: float | None

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, name)


class Handle:
    """Keeps the states of keys as Spark does, the key at hand being ``key``."""

    def __init__(self) -> None:
        self.key, self.states = "", dict[str, bytes]()

    def getValueState(self, name: str, schema: str) -> "Handle":
        assert schema == "bytes BINARY"
        return self

    def exists(self) -> bool:
        return self.key in self.states

    def get(self) -> tuple[bytes] | None:
        return (self.states[self.key],) if self.exists() else None

    def update(self, value: tuple[bytes]) -> None:
        (self.states[self.key],) = value


def model(**options: Any) -> OnlineGP:
    return OnlineGP(RBF(1), Gaussian(0.1), LegS(8), rebase="grow:1.5", **options)


def flat(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an answer of ``LiveStream`` as the rows of Spark's, without nulls."""
    shared = {name: answer.get(name) for name in ("line", "error", "alerts", "refused")}
    rows = []
    for ahead in answer.get("forecasts") or [{}]:
        names = {"horizon": "horizon", "t": "ahead", "mean": "mean", "low": "low", "high": "high"}
        row = shared | {new: ahead.get(name) for name, new in names.items()}
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")
def test_each_key_is_answered_as_by_a_stream_of_its_lines_alone() -> None:
    pytest.importorskip("pyspark.sql", reason="needs the extra spark")
    refit = Refit("every:4", steps=3)
    handle, answers = Handle(), spark._Answers(model(refit=refit), False, OPTIONS)
    answers.init(handle)
    batches = [
        [(2.0, 1.0), (0.0, 0.5), (1.0, 0.9)],
        [(3.0, None), (5.0, 0.2), (4.0, float("inf")), (None, 1.0), (-1.0, 0.1)],
        [(2.5, 0.7), (6.0, 0.3), (6.0, float("nan")), (7.0, 0.4), (8.0, 0.1)],
    ]
    streams = {name: LiveStream(model(refit=refit), **OPTIONS) for name in "ab"}
    refused = []
    for batch in batches:
        for shift, (name, stream) in enumerate(streams.items()):
            handle.key = name
            lines = [Line(t, None if y is None else y + shift) for t, y in batch]
            rows = [row.asDict() for row in answers.handleInputRows((name,), iter(lines), None)]
            names = ("key", "stamp", "value")
            got = [
                {k: v for k, v in row.items() if v is not None and k not in names} for row in rows
            ]
            order = sorted(lines, key=lambda line: (line.stamp is not None, line.stamp or 0))
            if batch is batches[2]:
                order[1], order[2] = order[2], order[1]  # a missing value before one of its stamp
            expected = [
                row for line in order for row in flat(stream.answer(f"{line.stamp},{line.value}"))
            ]
            assert got == expected
            assert {row["key"] for row in rows} == {name}
            refused += [row["refused"] for row in rows if row["refused"]]
    assert len(refused) == 6
    assert "the stamp must not lie before 0.0" in refused[1]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")
def test_dates_are_microseconds_in_utc_both_ways() -> None:
    pytest.importorskip("pyspark.sql", reason="needs the extra spark")
    handle, day = Handle(), 86_400_000_000
    answers = spark._Answers(model(), True, OPTIONS)
    answers.init(handle)
    lines = [Line(19_000 * day + k * day, float(k)) for k in range(3)]
    *_, last = answers.handleInputRows(("a",), iter(lines), None)
    assert last["stamp"] == 19_002 * day
    assert (last["horizon"], last["ahead"]) == (2, 19_004 * day)


def write_lines(folder: Path) -> dict[str, list[list[str]]]:
    """Write files of shuffled rows; return the lines of each key by file, in order."""
    dice, lines = random.Random(0), dict[str, list[list[str]]]()
    folder.mkdir(parents=True)
    for number in range(FILES):
        rows = list[dict[str, Any]]()
        for key in range(KEYS):
            start = 3.0 * number
            batch = [(start + k, dice.gauss(key % 7, 1)) for k in range(3)]
            if number == 2 and key % 5 == 0:
                batch[0] = (batch[0][0] - 1.5, None if key % 10 else batch[0][1])  # late, missing
            if number and key % 4 == 0:
                batch[2] = (-1.0, 1.0) if key % 8 else (batch[2][0], float("inf"))  # refused
            named = [{"name": f"k{key}", "t": t, "y": y} for t, y in batch]
            rows += named
            lines.setdefault(f"k{key}", []).append([f"{t},{y}" for t, y in sorted(batch)])
        dice.shuffle(rows)
        path = folder / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1e9 + number, 1e9 + number))  # Spark reads them by their age
    return lines


@pytest.mark.slow
@pytest.mark.usefixtures("plain_calls")  # or the comparison takes minutes
def test_a_killed_driver_goes_on_from_the_checkpoint_and_each_answer_comes_once(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    lines = write_lines(tmp_path / "lines")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    options: dict[str, Any] = {
        "env": os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    }
    log = tmp_path / "log"
    with log.open("w") as file:
        options |= {"stdout": file, "stderr": file, "start_new_session": True}
        first = subprocess.Popen(command, **options)
        committed = tmp_path / "answers" / "_spark_metadata"
        while not (committed / "0").exists():
            assert first.poll() is None, log.read_text()
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)  # Python and the Java that it has started
        first.wait()
        assert not (committed / str(FILES - 1)).exists()
        again = subprocess.Popen(command, **options)
        assert again.wait(600) == 0, log.read_text()
    answers = dict[str, list[dict[str, Any]]]()
    for text in (tmp_path / "all.json").read_text().splitlines():
        row = json.loads(text)
        answers.setdefault(row.pop("name"), []).append(row)
    assert answers.keys() == lines.keys()
    for name, batches in lines.items():
        stream = LiveStream(model(), **OPTIONS)
        expected = [row for batch in batches for line in batch for row in flat(stream.answer(line))]
        rows = sorted(answers[name], key=lambda row: (row["line"], row.get("horizon", 0)))
        plain = [{k: v for k, v in row.items() if k not in ("stamp", "value")} for row in rows]
        assert plain == expected, name
    assert sum("refused" in row for rows in answers.values() for row in rows) == KEYS // 4 * (
        FILES - 1
    )
