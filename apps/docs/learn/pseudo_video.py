# %% [markdown]
# # An image as a pseudo video
#
# An image generator can be trained as a video generator: the image is the last frame of a video of
# its own corruptions, and a video model learns to take the corruptions away. This page makes such
# videos, trains a small diffusion model on them, and asks a theorem what the frames are worth.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from pseudovideo import (
    DiffusionObjective,
    PseudoVideoConfig,
    VideoDiffusion,
    VideoDiffusionConfig,
    pseudo_videos,
)
from pseudovideo.corruptions import image_spectrum, prediction_errors
from pseudovideo.plots import theorem_plot, tiles

images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1


def show(videos: torch.Tensor, title: str) -> None:
    """Draw a video in each row."""
    plt.figure(figsize=(7, 1 + 0.75 * len(videos)))
    plt.imshow(tiles(videos.flatten(0, 1), columns=videos.shape[1]))
    plt.title(title)
    plt.axis("off")
    plt.show()


# %% [markdown]
# ## Two kinds of corruption
#
# Each row is a video; the image is on the right. Blur takes the details away first. Noise can be of
# high order: each frame then holds something about the image that the frames beside it do not.

# %%
show(pseudo_videos(images[:3], PseudoVideoConfig(num_frames=6)), "blur")
noise = PseudoVideoConfig(num_frames=6, kind="high-order-noise")
show(pseudo_videos(images[:3], noise), "noise of high order")

# %% [markdown]
# ## What frames are worth
#
# For Gaussian images with the covariance of these digits the errors are known exactly. In the
# picture, look at the panel in the middle: by how much the error of a frame falls when all frames
# before it are known and not only the last. With noise of first order it stays at 0, because the
# nearest frame says all; with noise of high order more frames help, by up to a fifth. The left
# panel is the same for the image, where the gain is a quarter of a percent.

# %%
spectrum = image_spectrum(images)
first_order = PseudoVideoConfig(num_frames=6, kind="first-order-noise")
theorem_plot(
    {
        "high order": prediction_errors(spectrum, noise),
        "first order": prediction_errors(spectrum, first_order),
    }
)

# %% [markdown]
# ## A small video model
#
# The first two of four frames are learned together, each later one given the two before it. 250
# steps are too few for good digits; they show that the pieces fit.

# %%
torch.manual_seed(0)
config = PseudoVideoConfig(num_frames=4, kind="high-order-noise")
model = VideoDiffusion(
    VideoDiffusionConfig(
        num_frames=4,
        context=2,
        image_size=8,
        channels=1,
        base_channels=16,
        num_res_blocks=1,
        num_groups=8,
        attention_sizes=(4,),
        schedule="cosine",
        prediction="v",
        one_way=True,
    )
)
objective = DiffusionObjective(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
losses = []
for _ in range(250):
    batch = images[torch.randint(len(images), (16,))]
    loss = objective(pseudo_videos(batch, config))["loss"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
first, last = (sum(part) / 20 for part in (losses[:20], losses[-20:]))
print(f"mean loss of the first 20 steps {first:.3f}, of the last {last:.3f}")

# %% [markdown]
# Samples. Look at the rows from left to right: the first two frames are drawn together, and each
# later frame keeps what was there and takes some noise away.

# %%
show(model.eval().sample(4, num_steps=20), "drawn videos, the image on the right")

# %% [markdown]
# `probseq generate diffusion` trains to the end, with the digits' classes, and compares with a
# model of the images alone.
