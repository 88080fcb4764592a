# %% [markdown]
# # Stream and forecast CO₂
#
# Weekly CO₂ at Mauna Loa, 1958 to 2001, as statsmodels ships it. The series comes as a stream:
# eight years, then the next eight. The model keeps a state of fixed size and no old data, and then
# forecasts two years that it has not seen.

# %%
import warnings

import numpy as np
from statsmodels.datasets import co2

from ohsvgp import Cosine, Gaussian, OnlineGP, Refit, Seasonal, Trend, forecast
from ohsvgp.plots import forecast_plot
from probseq.kernels import parse_kernel

ppm = co2.load_pandas().data["co2"].dropna()
years = (ppm.index - ppm.index[0]).days.to_numpy() / 365.25
print(len(ppm), "weeks over", round(years[-1], 1), "years; the last value is", ppm.iloc[-1], "ppm")

# %% [markdown]
# ## The model
#
# A mean with a trend and a yearly season, whose weights are learned exactly, and beside it a
# Gaussian process that is a slow part plus a fast one. `Cosine(40)` is the memory: 40 numbers with
# a covariance. `refit` fits the kernel's numbers again at each update, without the old data.

# %%
mean = Trend(level=400.0, slope=2.0) + Seasonal(period=1.0, harmonics=4, deviation=3.0)
kernel = parse_kernel("matern32(20, 10) + rbf(1, .3)")
gp = OnlineGP(kernel, Gaussian(0.1), Cosine(40), mean=mean, refit=Refit("every:1", steps=20))

# %% [markdown]
# ## The stream
#
# `lost_information` says, in nats, what was forgotten when the window grew. It warns once that 40
# numbers do not resolve single weeks; for forecasts over years they need not.

# %%
for start in range(0, 40, 8):
    now = (years >= start) & (years < start + 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        info = gp.update(years[now], ppm[now])
    print(f"years {start:2} to {start + 8}: {float(info.lost_information):6.2f} nats lost")

# %% [markdown]
# ## Two years ahead
#
# MASE is the mean absolute error over that of repeating the year before: below 1 is better than
# that. The second number is how many of the new values lie in intervals of 95 %.

# %%
new = (years >= 40) & (years < 42)
ahead = forecast(gp, years[new])
low, high = (bound.numpy() for bound in ahead.interval(0.95))
season = np.abs(ppm.to_numpy()[52:] - ppm.to_numpy()[:-52]).mean()
error = np.abs(ahead.mean.numpy() - ppm[new]).mean()
print(f"MASE {error / season:.2f}, inside 95 % {np.mean((low < ppm[new]) & (ppm[new] < high)):.2f}")

# %% [markdown]
# The picture has the last years of the data and the forecast. Look at whether the dots of the years
# to come would lie in the bands, and how the bands widen only slowly: the season is known well.

# %%
last = (years >= 34) & (years < 40)
forecast_plot(gp, years[last], ppm[last], years[new], labels=("years since March 1958", "ppm"))
