# %% [markdown]
# # Is a pseudo video worth it for my images?
#
# You have a folder of images and want a generator of more. Training it on pseudo videos costs
# several times as much as on the images alone. This page asks twice whether that pays: first by
# linear algebra, in seconds, and then by a short training of both. It ends with yes or no.
#
# The folder is made here of scikit-learn's digits, so that the page runs as it stands. Put yours in
# its place: PNG or JPEG files, which are read at 8 × 8 pixels.

# %%
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.transforms.functional import pil_to_tensor

from probseq.metrics.image import frechet_interval
from pseudovideo import (
    DiffusionObjective,
    ImageDiffusion,
    ImageDiffusionConfig,
    PseudoVideoConfig,
    VideoDiffusion,
    VideoDiffusionConfig,
    WeightAverage,
    pseudo_videos,
)
from pseudovideo.beyond.design import image_covariance, rank_designs
from pseudovideo.corruptions.base import ImageShape
from pseudovideo.plots import tiles
from pseudovideo.spec import DesignSpec

folder = Path(tempfile.mkdtemp())
for number, pixels in enumerate(load_digits().images):
    Image.fromarray((15 * pixels).astype("uint8")).save(folder / f"{number:04}.png")

# %%
pictures = [Image.open(file).convert("L").resize((8, 8)) for file in sorted(folder.glob("*.png"))]
images = torch.stack([pil_to_tensor(picture) for picture in pictures]) / 127.5 - 1
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train, held_out = images[order[:1200]], images[order[1200:]]
print(tuple(train.shape), "to learn from,", len(held_out), "to compare with")

# %% [markdown]
# ## Ask the covariance first
#
# Of the images only their covariance is looked at. For Gaussian images a model's errors are known
# exactly, so kinds of videos are ranked without training. `distance` is how far the images lie from
# the true ones that a learner draws which misses what varies little; less is better, and one frame
# is the image alone.

# %%
designs = [
    PseudoVideoConfig(num_frames=1),
    *(PseudoVideoConfig(num_frames=4, kind=kind) for kind in ("blur", "high-order-noise")),
]
ranking = rank_designs(image_covariance(train), ImageShape(1, 8, 8), designs, DesignSpec())
for design in ranking:
    name = design.videos.kind if design.videos.num_frames > 1 else "images alone"
    print(f"{name:18} distance {design.distance:.3f}, errors amplified {design.amplification:.2f}")

# %% [markdown]
# Noise of high order is promising, blur is not. But `errors amplified` warns: what a model of
# videos gets wrong in a frame, later frames build upon, and the image alone has no earlier frame.
#
# ## Then train both, briefly
#
# The same network, as many steps and as many images a step. A video model has more to compute in
# each: the seconds say how much.

# %%
network = dict(
    image_size=8,
    channels=1,
    base_channels=16,
    num_res_blocks=1,
    num_groups=8,
    attention_sizes=(4,),
    schedule="cosine",
    prediction="v",
)
videos = PseudoVideoConfig(num_frames=4, kind="high-order-noise")
torch.manual_seed(0)
models = {
    "images alone": (
        ImageDiffusion(ImageDiffusionConfig(**network)),
        PseudoVideoConfig(num_frames=1),
    ),
    "pseudo videos": (
        VideoDiffusion(VideoDiffusionConfig(num_frames=4, context=2, **network)),
        videos,
    ),
}
drawn = {}
for name, (model, config) in models.items():
    start = time.perf_counter()
    objective, average = DiffusionObjective(model), WeightAverage(model, 0.99)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(200):
        chosen = torch.randint(len(train), (32,))
        frames = pseudo_videos(train[chosen], config, index=chosen, epoch=step)
        loss = objective(frames)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(step)
    average.apply()
    samples = model.eval().sample(300, num_steps=10, eta=0.0)
    drawn[name] = samples[:, -1] if samples.ndim == 5 else samples
    print(f"{name}: {time.perf_counter() - start:.0f} s")

# %% [markdown]
# ## Which draws better?
#
# The Fréchet distance in pixels between samples and the training images, as an interval of 95 %,
# which takes off what 300 samples add by being few. As many images that no model has seen say how
# low it can be.

# %%
torch.manual_seed(0)
reference = train.flatten(1).double()
distances = {
    name: frechet_interval(reference, samples.clamp(-1, 1).flatten(1).double())
    for name, samples in {"real images": held_out[:300], **drawn}.items()
}
for name, distance in distances.items():
    print(f"{name:14} {distance.low:.2f} to {distance.high:.2f}")

# %%
figure, axes = plt.subplots(1, 3, figsize=(7, 2.6))
for axis, (name, pixels) in zip(axes, {"real images": held_out, **drawn}.items(), strict=True):
    axis.imshow(tiles(pixels[:36], columns=6))
    axis.set_title(name)
    axis.axis("off")
plt.show()

# %% [markdown]
# ## The decision

# %%
alone, video = distances["images alone"], distances["pseudo videos"]
if video.high < alone.low:
    print("yes: train on pseudo videos")
elif alone.high < video.low:
    print("no: train on the images alone")
else:
    print("not told apart: train on the images alone, which costs less")

# %% [markdown]
# So the first answer does not replace the second. One seed and a short training decide only what is
# far apart, and a video model that is given as many seconds instead of as many steps is behind
# further still. On the data that we tried the images alone were as good or better
# ([claims](../reproduce/claims.md)); yours may differ, and now you know how to ask.
# `probseq generate diffusion --data folder:PICTURES` asks with more seeds, a classifier's features
# and a report, `probseq generate design` ranks all kinds of videos.
