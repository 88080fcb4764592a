# %% [markdown]
# # Alert me when this sensor leaves its forecast
#
# A sensor writes a line to a file now and then. You want to be called when a value is not what one
# could expect from those before it, and not be called for nothing: a false alarm in fifty values is
# what you can bear. This page ends with the threshold that does it, and with the days on which it
# would have called.
#
# The sensor is a real one: the temperature of the sea off Peru, month by month from 1950 to 2010,
# as statsmodels ships it. What it is famous for is El Niño, when the sea is warm for a year.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from statsmodels.datasets import elnino

from ohsvgp import Fading, Gaussian, Level, OnlineGP, Refit, Seasonal
from ohsvgp.beyond.monitor import alarm_threshold
from ohsvgp.integrations.live import LiveStream
from probseq.kernels import parse_kernel

file = Path(tempfile.mkdtemp()) / "sensor.csv"
table = elnino.load_pandas().data.to_numpy()
with file.open("w") as csv:
    for year, *months in table:
        csv.writelines(
            f"{year:.0f}-{number:02},{value}\n" for number, value in enumerate(months, 1)
        )
print(file.read_text()[:36], "…", sep="\n")

# %% [markdown]
# Put your file in its place: lines of `time,value`, where a time is a date or a number.
#
# ## A model that follows the stream
#
# A season of a year, and a process that remembers for some months, seen through 40 points that are
# the sparser the further back. The first ten years give the hyperparameters; later lines are
# learned one by one, in a few milliseconds each, and are not stored.

# %%
model = OnlineGP(
    parse_kernel("matern32(100)"),  # days
    Gaussian(0.1),
    Fading(40),
    mean=Level(1.0) + Seasonal(period=365.25, harmonics=3, deviation=1.0),
    time_unit="D",
    rebase="task",
    refit=Refit(),
)
stream = LiveStream(model, warmup=120)
answers = [stream.answer(line) for line in file.open()]
followed = [answer for answer in answers if answer["error"] is not None]
print({name: followed[0][name] for name in ("t", "y", "error")})

# %% [markdown]
# `error` is how far the value was from its forecast, in deviations of that forecast; it is known
# before the value is learned. If the model is right, errors have a deviation of 1.
#
# ## How far is too far?
#
# The history until 1981 says how large errors are when all is well. `alarm_threshold` takes the
# size that a further error of the same kind exceeds once in fifty times at most, whatever the
# distribution of the errors: it needs no Gaussian, and no trust in the model.

# %%
errors = np.array([answer["error"] for answer in followed])
dates = np.array([answer["t"] for answer in followed], dtype="datetime64[M]")
history = dates < np.datetime64("1982-01")
threshold = alarm_threshold(errors[history], rate=0.02)
print(
    f"{history.sum()} errors of deviation {errors[history].std():.2f}: call above {threshold:.2f}"
)

# %% [markdown]
# ## The decision
#
# From 1982 on, these months call you. The strongest El Niños of the century began in the summers of
# 1982 and 1997.

# %%
calls = ~history & (np.abs(errors) > threshold)
print(*dates[calls])
print(f"{calls.sum()} calls in {(~history).sum()} months: {calls.sum() / (~history).sum():.1%}")

# %%
values = np.array([answer["y"] for answer in followed])
figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4), sharex=True)
above.plot(dates, values, color="0.5", linewidth=0.8)
above.plot(dates[calls], values[calls], "o", color="C3", markersize=4)
above.set_ylabel("sea, °C")
below.vlines(dates, 0, errors, color="0.5", linewidth=0.8)
below.vlines(dates[calls], 0, errors[calls], color="C3")
below.axhspan(-threshold, threshold, color="C0", alpha=0.15, linewidth=0)
below.set_ylabel("error, deviations")
below.axvline(np.datetime64("1982-01"), color="k", linestyle=":")
plt.show()

# %% [markdown]
# To the left of the dotted line is the history, in which two errors in a hundred are outside of the
# band by its construction. To the right there are more: a sea that does what it did not do before
# is what the alarm is for, and the promise holds only while nothing changes. After some months the
# model has learned that the sea is warm, and is quiet again: it calls for what is new.
#
# For a stream that does not end, `probseq online live` reads a pipe, answers each line with the
# same `error`, and keeps its state in a file; `--page 8000` draws it for a browser on this machine.
