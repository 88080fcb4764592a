# %% [markdown]
# # Is a pseudo video worth it for my images?
#
# You have a folder of images and want a generator of more. Training it on pseudo videos costs
# several times as much as on the images alone. This page asks by short trainings of both whether
# that pays, and ends with yes or no.
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

from probseq.metrics.image import frechet_distance
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
from pseudovideo.plots import tiles

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
# ## Train both, briefly
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
VIDEOS = PseudoVideoConfig(num_frames=4, kind="high-order-noise")
ALONE = PseudoVideoConfig(num_frames=1)


def trained_samples(corruption, seed):
    """Train a model of images or of videos, and draw 300 images."""
    torch.manual_seed(seed)
    if corruption.num_frames == 1:
        model = ImageDiffusion(ImageDiffusionConfig(**network))
    else:
        model = VideoDiffusion(VideoDiffusionConfig(num_frames=4, context=2, **network))
    objective, average = DiffusionObjective(model), WeightAverage(model, 0.99)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(100):
        chosen = torch.randint(len(train), (32,))
        frames = pseudo_videos(train[chosen], corruption, seed=step)
        loss = objective(frames)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(step)
    average.apply()
    samples = model.eval().sample(300, num_steps=10, eta=0.0)
    return samples[:, -1] if samples.ndim == 5 else samples


drawn = {}
for name, corruption in {"images alone": ALONE, "pseudo videos": VIDEOS}.items():
    start = time.perf_counter()
    drawn[name] = [trained_samples(corruption, seed) for seed in range(3)]
    print(f"{name}: {(time.perf_counter() - start) / 3:.0f} s a training")

# %% [markdown]
# ## Which draws better?
#
# The Fréchet distance in pixels between samples and the training images, for each of three seeds.
# As many images that no model has seen say how low it can be.

# %%
reference = train.flatten(1).double()


def distance(pixels):
    """Return the Fréchet distance of images from the training images."""
    return float(frechet_distance(reference, pixels.clamp(-1, 1).flatten(1).double()))


distances = {name: [distance(pixels) for pixels in seeds] for name, seeds in drawn.items()}
print(f"real images    {distance(held_out[:300]):.2f}")
for name, values in distances.items():
    print(f"{name:14} {min(values):.2f} to {max(values):.2f}")

# %%
pictures = {"real images": held_out} | {name: seeds[0] for name, seeds in drawn.items()}
figure, axes = plt.subplots(1, 3, figsize=(7, 2.6))
for axis, (name, pixels) in zip(axes, pictures.items(), strict=True):
    axis.imshow(tiles(pixels[:36], columns=6))
    axis.set_title(name)
    axis.axis("off")
plt.show()

# %% [markdown]
# ## The decision

# %%
alone, video = distances["images alone"], distances["pseudo videos"]
if max(video) < min(alone):
    print("yes: train on pseudo videos")
elif max(alone) < min(video):
    print("no: train on the images alone")
else:
    print("not told apart: train on the images alone, which costs less")

# %% [markdown]
# Three seeds of a short training decide only what is far apart, and a video model that is given as
# many seconds instead of as many steps is behind further still. On the data that we tried the
# images alone were as good or better ([claims](../reproduce/claims.md)); yours may differ, and now
# you know how to ask. `probseq generate diffusion --data folder:PICTURES` asks with more seeds, a
# classifier's features and a report.
