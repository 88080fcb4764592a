# %% [markdown]
# # Alert me when this sensor leaves its forecast
#
# A sensor writes a line to a file now and then. You want to be called when a value is not what one
# could expect from those before it, and not be called for nothing: a false alarm in fifty values is
# what you can bear. This page ends with the days on which it would have called.
#
# The sensor is a real one: the temperature of the sea off Peru, month by month from 1950 to 2010,
# as statsmodels ships it. What it is famous for is El Niño, when the sea is warm for a year.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from statsmodels.datasets import elnino

from ohsvgp.integrations.live import LiveStream

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
# ## A stream that finds its season
#
# The first lines give the step. A season is looked for among those of the calendar and of the data,
# and taken where it explains them better than none; the answer to that line says so. Each later
# line is learned in about a millisecond and not stored.

# %%
stream = LiveStream(false_alarms=0.02)
answers = [stream.answer(line) for line in file.open()]
for answer in answers:
    if "season" in answer:
        print(answer["t"], answer["season"])
followed = [answer for answer in answers if answer["error"] is not None]
print({name: followed[0][name] for name in ("t", "y", "error")})

# %% [markdown]
# `error` is how far the value was from its forecast, in deviations of that forecast; it is known
# before the value is learned. If the model is right, errors have a deviation of 1. Those beyond
# what one in fifty exceeds are told as `outlier`; where the next values are as far out, something
# new has begun, and the alert is `new level`.

# %%
errors = np.array([answer["error"] for answer in followed])
dates = np.array([answer["t"] for answer in followed], dtype="datetime64[M]")
calls = np.array([bool({"outlier", "new level"} & {*answer["alerts"]}) for answer in followed])
print(f"errors have a deviation of {errors.std():.2f}")

# %% [markdown]
# ## The decision
#
# These months call you. Of the strongest El Niños of the century that of 1982 does, in November;
# that of 1997 grew month by month, each as the one before let expect, and does not.

# %%
print(*dates[calls])
print(f"{calls.sum()} calls in {len(calls)} months: {calls.mean():.1%}")

# %%
values = np.array([answer["y"] for answer in followed])
figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4), sharex=True)
above.plot(dates, values, color="0.5", linewidth=0.8)
above.plot(dates[calls], values[calls], "o", color="C3", markersize=4)
above.set_ylabel("sea, °C")
below.vlines(dates, 0, errors, color="0.5", linewidth=0.8)
below.vlines(dates[calls], 0, errors[calls], color="C3")
below.set_ylabel("error, deviations")
plt.show()

# %% [markdown]
# After some months the stream has learned that the sea is warm, and is quiet again: it calls for
# what is new.
#
# On the command line `probseq forecast sensor.csv --report page.html` is all of this; of a pipe it
# answers each line with the same `error`, and `--state` keeps what it knows in a file.
