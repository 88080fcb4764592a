# %% [markdown]
# # Counts and labels on a stream
#
# Not all data are real numbers with Gaussian noise. Here a stream of counts and a stream of labels
# are learned batch by batch. Nothing is stored but the state of the model.

# %%
import numpy as np
import torch
from sklearn.datasets import make_moons
from statsmodels.datasets import sunspots

from ohsvgp import Bernoulli, LegS, Level, NegativeBinomial, OnlineGP, Path, forecast
from ohsvgp.plots import boundaries_plot, forecast_plot
from ohsvgp.plots.plane import Plane
from probseq.kernels import RBF, parse_kernel

# %% [markdown]
# ## Counts
#
# Yearly numbers of sunspots, 1700 to 2008, from statsmodels, rounded. They vary more than a Poisson
# distribution allows, so the likelihood is negative binomial. Their logarithm has a level, a wave
# of eleven years that changes over decades, and swings. Only the first hundred years are fitted.

# %%
data = sunspots.load_pandas().data
years, counts = data["YEAR"].to_numpy(), data["SUNACTIVITY"].round().to_numpy()
first = years < 1800
kernel = parse_kernel("periodic(11)*rbf(30) + rbf(3)")
gp = OnlineGP(kernel, NegativeBinomial(dispersion=5.0), LegS(60), mean=Level(5.0))
gp.fit_hyperparameters(years[first], counts[first], steps=30)
print("years:", gp.update(years[first], counts[first]).n_new)

# %% [markdown]
# Ten years at a time follow, each forecast before it is learned: how many of the new values are
# inside their intervals of 95 %, and is a forecast as near as the value eleven years before?

# %%
inside, errors = [], []
for start in range(1800, 2000, 10):
    now = (years >= start) & (years < start + 10)
    ahead, before = forecast(gp, years[now]), counts[np.flatnonzero(now) - 11]
    low, high = ahead.interval(0.95)
    inside += ((low.numpy() <= counts[now]) & (counts[now] <= high.numpy())).tolist()
    errors.append([abs(mean - counts[now]).mean() for mean in (ahead.mean.numpy(), before)])
    gp.update(years[now], counts[now])
print(f"inside 95 %: {np.mean(inside):.2f}; mean errors:", np.mean(errors, 0).round(1))

# %% [markdown]
# The value eleven years before is hard to beat, but has no interval. Intervals of counts are whole
# numbers, do not go below zero, and are not symmetric: high years are less certain than low ones.

# %%
shown = (years >= 1950) & (years < 2000)
forecast_plot(gp, years[shown], counts[shown], np.arange(2000, 2009), labels=("year", "sunspots"))

# %% [markdown]
# ## Labels
#
# Two interleaved half moons, learned from left to right in four tasks. An input with two dimensions
# has no time, so `Path` lays one through the points of each task: from each to the most similar one
# that is left.

# %%
x, y = make_moons(240, noise=0.15, random_state=0)
order = np.argsort(x[:, 0], kind="stable")
x, y = x[order], y[order]
task = np.repeat(np.arange(4), 60)
classifier = OnlineGP(RBF(2, lengthscale=0.5, outputscale=3.0), Bernoulli(), Path(40))

side = np.linspace(-2, 3, 40)
grid = np.stack(np.meshgrid(side, np.linspace(-1.5, 2, 40)), axis=-1).reshape(-1, 2)
after = []
for number in range(4):
    classifier.update(x[task == number], y[task == number].astype(float))
    after.append(classifier.predict(grid, include_noise=True).mean.numpy())

# %% [markdown]
# A column for each task. Look at two things: where no points have been yet the map stays pale,
# a probability of one half; and what was learned in the first column is still there in the last,
# although the points of the first task have been gone since.

# %%
boundaries_plot({"OHSVGP": Plane(grid, np.stack(after), x, y, task)})

# %%
known = torch.as_tensor(classifier.predict(x, include_noise=True).mean)
right = (known.numpy() > 0.5) == y
print(
    "right after all tasks, by task:", [round(float(right[task == k].mean()), 2) for k in range(4)]
)
