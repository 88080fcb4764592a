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

from ohsvgp import Bernoulli, LegS, NegativeBinomial, OnlineGP, Path, forecast
from ohsvgp.plots import boundaries_plot, forecast_plot
from ohsvgp.plots.plane import Plane
from probseq.kernels import RBF

# %% [markdown]
# ## Counts
#
# Yearly numbers of sunspots, 1700 to 2008, from statsmodels, rounded. The counts vary more than a
# Poisson law allows, so the likelihood is negative binomial, with a dispersion that is learned. The
# hyperparameters are fitted on the first hundred years and on nothing else.

# %%
data = sunspots.load_pandas().data
years, counts = data["YEAR"].to_numpy(), data["SUNACTIVITY"].round().to_numpy()
first = years < 1800
kernel = RBF(1, lengthscale=3.0)
gp = OnlineGP(kernel, NegativeBinomial(dispersion=5.0), LegS(60))
gp.fit_hyperparameters(years[first], counts[first], steps=30)
gp.update(years[first], counts[first])
print(f"lengthscale {kernel.lengthscale.item():.1f} years")

# %% [markdown]
# Ten years at a time follow, each forecast before it is learned. What counts is how many of the new
# values were inside their intervals of 95 %. A warning says that 60 functions
# no longer hold every detail of so long a past; the intervals show whether forecasts suffer.

# %%
inside = []
for start in range(1800, 2000, 10):
    now = (years >= start) & (years < start + 10)
    low, high = forecast(gp, years[now]).interval(0.95)
    inside += ((low.numpy() <= counts[now]) & (counts[now] <= high.numpy())).tolist()
    gp.update(years[now], counts[now])
print(f"inside 95 %: {np.mean(inside):.2f}")

# %% [markdown]
# Look at the forecast's shape. Intervals of counts are whole numbers and do not go below zero, and
# they are not symmetric: high years are less certain than low ones. After a few years the model
# knows only that the next value is some number of sunspots, and says so.

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
