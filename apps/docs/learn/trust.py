# %% [markdown]
# # Which predictions can I trust?
#
# You have a trained classifier and some labelled data that it has not seen. This page goes from
# there to a threshold for production: which predictions may go through, and which a person should
# look at. First with a network, then with a random forest.
#
# Data: scikit-learn's digits, with noise, so that there is something to be unsure of.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from torch import nn

import probseq
from probseq.metrics import calibration_bins
from probseq.metrics.plots import reliability_diagram

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
x = torch.tensor(digits.data[order], dtype=torch.float32) / 8 - 1
x += 0.4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
y = torch.tensor(digits.target[order])
train, held_out, test = slice(0, 300), slice(300, 1300), slice(1300, None)

# %% [markdown]
# ## A model of yours
#
# It is trained as usual, and surer than it should be, as networks are.

# %%
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(1000):
    loss = F.cross_entropy(model(x[train]), y[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# ## One line
#
# A third of the held-out data fits a temperature and a posterior of the last layer, the second
# chooses, and the last, which neither fitted nor chose, decides. We want at most 8 errors in 100
# among what is accepted.

# %%
calibrated = probseq.calibrate(model, (x[held_out], y[held_out]), error_rate=0.08)
print(calibrated)

# %% [markdown]
# The difference in the last column is paired. Chosen is the first row that is level with the
# lowest: where nothing is better than the model as it is by more than chance, that is what you get.
#
# ## Does it hold on other data?

# %%
decision = calibrated.decide(x[test])
right = decision.label == y[test]
print(f"right on all: {right.double().mean():.3f}")
print(f"accepted: {decision.accepted.double().mean():.3f} of them")
print(f"right among these: {right[decision.accepted].double().mean():.3f}")
inside = decision.sets.gather(1, y[test, None]).double().mean()
print(
    f"sets hold the class in {inside:.3f}, with {decision.sets.sum(1).double().mean():.2f} classes"
)

# %% [markdown]
# Look at the bars of the first panel: before, predictions of a confidence of .9 were right far less
# often than in nine of ten.

# %%
with torch.no_grad():
    bins = {
        "before": calibration_bins(model(x[test]).softmax(-1), y[test]),
        "after": calibration_bins(calibrated(x[test]).exp(), y[test]),
    }
reliability_diagram(bins)

# %% [markdown]
# ## Into production
#
# The file holds what was fitted, and the hash of the weights that it belongs to.

# %%
with TemporaryDirectory() as folder:
    calibrated.save(folder)
    print([path.name for path in Path(folder).iterdir()])
    again = probseq.load_calibrated(folder, model)
assert torch.equal(again(x[test]), calibrated(x[test]))

# %% [markdown]
# ## The same for a random forest
#
# Its probabilities are recognised; those that are exactly 0, of classes that no tree voted for, are
# counted as 1e-12.

# %%
forest = RandomForestClassifier(100, random_state=0).fit(x[train], y[train])
print(probseq.calibrate(forest, (x[held_out].numpy(), y[held_out].numpy()), error_rate=0.1))
