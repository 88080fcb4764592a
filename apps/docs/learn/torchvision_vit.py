# %% [markdown]
# # Our attention in a torchvision ViT
#
# A vision transformer of torchvision is trained as usual. Then `sgpa.calibrate` puts a sparse
# Gaussian process beside its last attention layer, tries a temperature too, and keeps what held-out
# images recommend. No weight of the model is trained again.
#
# The ViT is small and learns scikit-learn's digits in a few seconds; with `torchvision.models` and
# weights of yours nothing else changes.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torchvision.models import VisionTransformer

import sgpa
from probseq.corruptions import corrupt
from probseq.metrics import calibration_bins, evaluate
from probseq.metrics.plots import reliability_diagram

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
pixels = torch.tensor(digits.images[order] * 255 / 16).to(torch.uint8)[:, None]
labels = torch.tensor(digits.target[order])


def to_input(grey: torch.Tensor) -> torch.Tensor:
    """Return images as torchvision's model wants them: three channels of floats."""
    return (grey.float() / 127.5 - 1).expand(-1, 3, -1, -1)


train, held_out, test = slice(0, 600), slice(600, 1000), slice(1000, 1400)

# %% [markdown]
# ## The model, trained as usual

# %%
torch.manual_seed(0)
vit = VisionTransformer(
    image_size=8, patch_size=2, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10
)
optimizer = torch.optim.AdamW(vit.parameters(), lr=3e-3)
inputs = to_input(pixels)
for _ in range(300):
    batch = torch.randint(600, (50,))
    loss = F.cross_entropy(vit(inputs[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
vit.eval()
print(f"last training loss {loss.item():.3f}")

# %% [markdown]
# ## Calibration
#
# It needs a batch of training images, on whose queries the inducing inputs are placed, and held-out
# images with labels. We want probabilities that hold up when images become noisy, so half of the
# held-out images are noisy.

# %%
noisy = corrupt(pixels[held_out], "gaussian_noise", severity=3, seed=0)
validation = [
    (to_input(pixels[held_out]), labels[held_out]),
    (to_input(noisy), labels[held_out]),
]
with torch.no_grad():
    before = vit(inputs[test]).softmax(-1)
    blurred = to_input(corrupt(pixels[test], "gaussian_blur", severity=4, seed=1))
    before_blurred = vit(blurred).softmax(-1)

calibrated = sgpa.calibrate(vit, inputs[train][:300], validation, num_samples=5)
for name, candidate in calibrated.candidates.items():
    chosen = "  <- chosen" if name == calibrated.chosen else ""
    print(f"{name:24} validation NLL {candidate.nll:.3f}{chosen}")

# %% [markdown]
# ## Before and after, on images blurred as none were before

# %%
with torch.no_grad():
    after = calibrated(inputs[test]).exp()
    after_blurred = calibrated(blurred).exp()
rows = {
    "clean, before": before,
    "clean, after": after,
    "blurred, before": before_blurred,
    "blurred, after": after_blurred,
}
for name, probs in rows.items():
    numbers = evaluate(probs, labels[test])
    print(f"{name:16}", {key: round(numbers[key], 3) for key in ("accuracy", "nll", "ece")})

# %% [markdown]
# Look at the right end of each panel: before, the model is nearly certain of many blurred images
# and wrong about a good part of them, so that the bar of the highest confidence stays below the
# diagonal. Afterwards it says less than it did, and what it says is nearer to the truth.

# %%
reliability_diagram(
    {
        "blurred, before": calibration_bins(before_blurred, labels[test]),
        "blurred, after": calibration_bins(after_blurred, labels[test]),
    }
)

# %% [markdown]
# ## Keep it
#
# The folder holds what was added, not the model; another process loads it beside the model's own
# weights. Nothing in it is a pickle.

# %%
with TemporaryDirectory() as folder:
    calibrated.save(Path(folder) / "calibrated")
    print(sorted(path.name for path in (Path(folder) / "calibrated").iterdir()))
