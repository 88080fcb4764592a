# %% [markdown]
# # Your own model and data
#
# You have arrays and a transformer of plain PyTorch. This page replaces its last attention layer by
# KEP-SVGP attention, trains it, and compares it with the model as it was. Three things change in
# your code: one line puts the layer in, one adds its penalty to the loss, and one asks for the mean
# of several predictions.
#
# Data: scikit-learn's digits, read as sequences of eight rows with eight numbers each. Put your own
# arrays of shape (examples, tokens, features) in their place.

# %%
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

import kepsvgp
from probseq.metrics import evaluate, risk_coverage_curve
from probseq.metrics.plots import risk_coverage_plot
from probseq.transformers import collect_penalties, exchange_attention

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
x = torch.tensor(digits.images[order], dtype=torch.float32) / 8 - 1  # (1797, 8, 8)
y = torch.tensor(digits.target[order])
x_train, y_train, x_test, y_test = x[:300], y[:300], x[300:800], y[300:800]

# %% [markdown]
# ## A model of yours


# %%
class RowReader(nn.Module):
    """Classify a sequence by the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.places = nn.Parameter(torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(rows) + self.places).mean(dim=1))


# %% [markdown]
# ## One line puts the layer in
#
# `exchange_attention` finds the attention layers of torch, timm and transformers and exchanges the
# last one, or those that you name. `make` is called with the width and the number of heads.

# %%
torch.manual_seed(0)
plain = RowReader()
torch.manual_seed(0)
exchanged = exchange_attention(
    RowReader(), lambda dim, heads: kepsvgp.KernelEigenPairAttention(dim, heads, rank=8, eta=0.1)
)
print(type(exchanged.encoder.layers[-1].self_attn).__name__)

# %% [markdown]
# ## One line adds the penalty
#
# Within `collect_penalties` each exchanged layer leaves its penalty, in nats. The loss is the same
# for both models but for it.


# %%
def fit(model: nn.Module, steps: int = 300) -> nn.Module:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(x_train), (50,))
        with collect_penalties(model) if model is exchanged else nullcontext([]) as penalties:
            logits = model(x_train[batch])
        loss = F.cross_entropy(logits, y_train[batch]) + sum(penalties)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


plain, exchanged = fit(plain), fit(exchanged)

# %% [markdown]
# ## One line asks for the mean of several predictions
#
# Attention draws from its posterior at every call, so the prediction is a mean over calls. Beside
# both stands what anybody would try first, logistic regression on the pixels.


# %%
@torch.no_grad()
def predict(model: nn.Module, rows: torch.Tensor, num_samples: int = 20) -> torch.Tensor:
    return torch.stack([model(rows).softmax(-1) for _ in range(num_samples)]).mean(0)


torch.manual_seed(0)
linear = LogisticRegression(max_iter=1000).fit(x_train.flatten(1), y_train)
predictions = {
    "logistic": torch.tensor(linear.predict_proba(x_test.flatten(1))),
    "softmax": predict(plain, x_test, 1),
    "KEP-SVGP": predict(exchanged, x_test),
}
for name, probs in predictions.items():
    numbers = evaluate(probs, y_test)
    shown = {key: round(numbers[key], 3) for key in ("accuracy", "nll", "ece", "aurc")}
    print(f"{name:9}", shown)

# %% [markdown]
# Softmax attention is the best of the three here, in all four numbers: the exchange is worth a try,
# and worth a comparison, on data of your own.
#
# The picture answers a question of practice: if the model passes the examples that it is least
# sure of to a person, how many mistakes are left? From right to left more and more examples are
# passed on. Look at how fast each curve falls: a model whose doubts are where its mistakes are
# reaches zero early.

# %%
risk_coverage_plot(
    {
        name: risk_coverage_curve(probs.amax(-1), probs.argmax(-1) == y_test)
        for name, probs in predictions.items()
    }
)

# %% [markdown]
# `remove_attention(model)` of `probseq.transformers` puts the old layers back. To leave a trained
# model's weights alone and only calibrate it, see the next page.
