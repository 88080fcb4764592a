# %% [markdown]
# # Calibrated digits
#
# A classifier is calibrated when, of the predictions that it gives a probability of 80 %, 80 % are
# right. We train three small vision transformers on 200 handwritten digits: one with softmax
# attention, and two whose attention is a Gaussian process, and put logistic regression beside them,
# which is what anybody would try first. Then we look at how accurate each is, whether its
# probabilities can be trusted, and whether it notices digits that lie on their side.
#
# The digits are scikit-learn's: 8 by 8 pixels, with numbers from 0 to 16.

# %%
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import kepsvgp
import sgpa
from probseq.metrics import calibration_bins, evaluate, evaluate_ood
from probseq.metrics.plots import reliability_diagram
from probseq.transformers import (
    SoftmaxConfig,
    TransformerConfig,
    predict_probabilities,
    vision_transformer,
)

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images = torch.tensor(digits.images[order], dtype=torch.float32)[:, None] / 8 - 1
labels = torch.tensor(digits.target[order])
train, test = slice(0, 200), slice(200, 700)
print(images[train].shape, images[test].shape)

# %% [markdown]
# ## Three models
#
# The backbone is the same: an image becomes 16 tokens of 2 by 2 pixels, and two blocks of attention
# and a small network follow, and a linear layer reads the class off all tokens side by side. Only
# the attention is another one. Each setting is a plain object that names what can be chosen.

# %%
backbone = TransformerConfig(depth=2, dim=32, num_heads=4, hidden_dim=64, pooling="flatten")
attentions = {
    "softmax": SoftmaxConfig(),
    "SGPA": sgpa.SGPAConfig(num_inducing=16, initial_posterior="prior", initial_variance=0.02),
    "KEP-SVGP": kepsvgp.KEPSVGPConfig(rank=16, eta=0.1),
}


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return vision_transformer(
        backbone, attentions[name], image_size=8, patch_size=2, channels=1, num_classes=10
    )


# %% [markdown]
# ## Training
#
# A model returns logits and a penalty: what the Gaussian process costs, in nats for each image, and
# zero for softmax attention. The loss is the cross-entropy plus the penalty, the bound that the
# papers derive.


# %%
def fit(name: str, steps: int = 200) -> torch.nn.Module:
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(200, (50,), generator=generator)
        logits, penalty = model(images[batch])
        loss = F.cross_entropy(logits, labels[batch]) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


models = {name: fit(name) for name in attentions}

# %% [markdown]
# ## Are the probabilities right?
#
# `predict_probabilities` draws from the attention's posterior and averages the probabilities.
# `nll` is the negative log-likelihood and `ece` the expected calibration error; lower is better.

# %%
generator = torch.Generator().manual_seed(0)
probabilities = {
    name: predict_probabilities(model, images[test], num_samples=10, generator=generator).detach()
    for name, model in models.items()
}
linear = LogisticRegression(C=10.0, max_iter=1000).fit(images[train].flatten(1), labels[train])


def linear_probabilities(inputs: torch.Tensor) -> torch.Tensor:
    return torch.tensor(linear.predict_proba(inputs.flatten(1)), dtype=torch.float32)


probabilities["logistic"] = linear_probabilities(images[test])
for name, probs in probabilities.items():
    numbers = evaluate(probs, labels[test])
    print(f"{name:9}", {key: round(numbers[key], 3) for key in ("accuracy", "nll", "ece")})

# %% [markdown]
# In the picture each bar is the accuracy of the predictions with about that confidence; a
# calibrated model has its bars on the diagonal. Look at which side of the diagonal they lie: below
# it a model is surer than it may be, above it less sure than it could be. Below are the numbers of
# images: a model that knows more has more of them on the right.

# %%
reliability_diagram(
    {name: calibration_bins(probs, labels[test]) for name, probs in probabilities.items()}
)

# %% [markdown]
# ## Does it notice what it has never seen?
#
# We turn the test images by 90 degrees and rank all images by the entropy of their prediction. The
# area under the ROC curve (AUROC) is the chance that a turned digit is ranked above an upright one.

# %%
turned = images[test].rot90(dims=(-2, -1))
outside = {
    name: predict_probabilities(model, turned, num_samples=10, generator=generator).detach()
    for name, model in models.items()
}
outside["logistic"] = linear_probabilities(turned)
for name, probs in outside.items():
    scores = evaluate_ood((probabilities[name], {}), (probs, {}))
    print(f"{name:9} AUROC by entropy {scores['entropy/auroc']:.3f}")

# %% [markdown]
# Look at the linear model: it is as accurate as any transformer here, and sees nothing strange in a
# turned digit. How tokens are pooled matters more for this than the attention: try `pooling="cls"`.
#
# One seed and 500 images separate little. `probseq classify --recipe digits-few` does the same with
# five seeds, with choices made on validation images; `probseq classify` compares the methods on a
# task that needs attention.
