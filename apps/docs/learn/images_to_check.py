# %% [markdown]
# # Which images should a person look at?
#
# You have a folder of images whose classes you know, an inbox of new ones, and a person whose time
# is short. A classifier sorts the inbox; where it is not sure enough, the person looks. This page
# ends with a list of files for that person, and with a promise: of the images that nobody looks at,
# at most 3 in 100 get a wrong class.
#
# The folder is made here of scikit-learn's digits, so that the page runs as it stands. Put yours in
# its place: `folder/CLASS/NAME.png`, all of one size.

# %%
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

from probseq.metrics import risk_coverage_curve, select_with_error
from probseq.metrics.plots import risk_coverage_plot
from probseq.transformers import SoftmaxConfig, TransformerConfig, vision_transformer

folder = Path(tempfile.mkdtemp())
digits = load_digits()
for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
    place = folder / ("inbox" if number % 9 < 2 else "known") / str(digit)
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray((15 * pixels).astype("uint8")).save(place / f"{number}.png")

# %% [markdown]
# ## Three sets of known images
#
# The first set trains the model. The second says how sure it has to be: it must not have been used
# for anything else, since the model is surer of what it has learned. The inbox has classes here
# too, but only so that the promise can be checked at the end.


# %%
def read(path: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Return images in -1..1, classes and files."""
    files, classes = zip(*ImageFolder(path).samples, strict=True)
    images = [pil_to_tensor(Image.open(file).convert("L")) for file in files]
    return torch.stack(images) / 127.5 - 1, torch.tensor(classes), list(files)


images, labels, _ = read(folder / "known")
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, held_out = order[:700], order[700:]
print(len(train), "to learn from,", len(held_out), "to choose how sure is sure enough")

# %% [markdown]
# ## A classifier
#
# Any will do that gives probabilities: a model of timm, logistic regression, or this one.

# %%
torch.manual_seed(0)
backbone = TransformerConfig(depth=2, dim=32, num_heads=4, hidden_dim=64, pooling="flatten")
model = vision_transformer(
    backbone, SoftmaxConfig(), image_size=8, patch_size=2, channels=1, num_classes=10
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(250):
    batch = train[torch.randint(len(train), (50,))]
    loss = F.cross_entropy(model(images[batch]).logits, labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

with torch.no_grad():
    probs = model(images[held_out]).logits.softmax(-1)
confidence, correct = probs.amax(-1), probs.argmax(-1) == labels[held_out]
print(f"accuracy {correct.float().mean():.3f}")

# %% [markdown]
# ## How sure is sure enough?
#
# `select_with_error` takes the largest share of images for which the binomial bound stays below the
# wanted error: with a probability of 95 %, no more than 3 in 100 of those it accepts are wrong, on
# new images of the same kind. It assumes nothing of the model; a bad one gets a small share.

# %%
selection = select_with_error(confidence, correct, max_error=0.03)
print(f"accept above {selection.threshold:.3f}: {selection.coverage:.0%} of the images, of which")
print(f"{selection.error:.1%} were wrong here, and at most {selection.bound:.1%} are elsewhere")

# %% [markdown]
# Look at the curve from the right: the more images a person takes over, the fewer mistakes are left
# among the rest. The first images that the model is least sure of are where most mistakes are.

# %%
risk_coverage_plot({"held-out images": risk_coverage_curve(confidence, correct)})

# %% [markdown]
# ## The decision
#
# These files of the inbox are for the person, the least sure first. All others have their class.

# %%
new, truth, files = read(folder / "inbox")
with torch.no_grad():
    probs = model(new).logits.softmax(-1)
confidence = probs.amax(-1)
to_check = [i for i in confidence.argsort().tolist() if confidence[i] <= selection.threshold]
for i in to_check[:5]:
    print(f"{Path(files[i]).name}: perhaps {probs[i].argmax()}, {confidence[i]:.2f}")
print(f"{len(to_check)} of {len(files)} images to look at")

# %% [markdown]
# Was the promise held? Here the classes of the inbox are known.

# %%
accepted = confidence > selection.threshold
wrong = (probs.argmax(-1) != truth)[accepted]
print(f"{int(wrong.sum())} of {len(wrong)} accepted images are wrong: {wrong.float().mean():.1%}")

# %% [markdown]
# The promise rests on new images that are of the kind of the held-out ones. These digits are
# in the order of their writers: with the last 397 as inbox, whose writers are new, 3.5 % of what is
# accepted is wrong. So hold out labelled images of every new source, and choose anew.
