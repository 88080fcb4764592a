# %% [markdown]
# # Kernels on attention
#
# Attention compares each token with each other token. Kernel attention makes this comparison a
# covariance function: outputs become predictions of a Gaussian process, and the choice of kernel is
# a choice of what "alike" means. This page draws such comparisons, and then the uncertainty that
# comes with them.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import sgpa
from probseq.kernels import parse_kernel
from probseq.transformers import KernelAttention

# %% [markdown]
# ## The same tokens, four kernels
#
# The tokens are the eight rows of one digit. A kernel is a module, or an expression in words; sums
# and products are kernels too.

# %%
rows = torch.tensor(load_digits().images[0], dtype=torch.float32) / 8 - 1  # (8, 8)
expressions = {
    "RBF, lengthscale 1": "rbf(1)",
    "RBF, lengthscale 3": "rbf(3)",
    "Matérn 1/2, lengthscale 3": "matern12(3)",
    "RBF plus white noise": "rbf(3) + white(.2)",
}
figure, panels = plt.subplots(1, 5, figsize=(12, 2.9), layout="constrained")
panels[0].imshow(rows, cmap="gray_r")
panels[0].set_title("eight tokens: rows")
for panel, (name, words) in zip(panels[1:], expressions.items(), strict=True):
    matrix = parse_kernel(words, dim=8)(rows, rows)
    image = panel.imshow(matrix.detach(), vmin=0, vmax=1.2)
    panel.set_title(name, fontsize=9)
figure.colorbar(image, ax=panels)
plt.show()

# %% [markdown]
# Look along the diagonal, where a row meets itself, and away from it, where it meets others. With
# a short lengthscale a row attends to itself alone; with a long one rows that look alike attend to
# each other: the upper and the lower edge of the zero, and its two straight sides. The Matérn
# kernel has heavier tails and no sharp edge. White noise lifts the diagonal and says: even an
# equal token is not quite the same.

# %% [markdown]
# ## A layer, and its lengthscales
#
# In a layer each head has lengthscales of its own, one for each dimension, which training moves.

# %%
torch.manual_seed(0)
layer = KernelAttention(dim=8, num_heads=2)
values, penalty = layer(rows[None])
print(
    values.shape,
    "penalty",
    float(penalty),
    {n: tuple(p.shape) for n, p in layer.named_parameters()},
)

# %% [markdown]
# ## From a kernel to a posterior
#
# SGPA keeps the kernel and adds inducing inputs: places in the space of queries where the layer
# knows something. Its posterior begins as the prior, whose variance is the same everywhere;
# training makes it narrow where that helps. Here we make it narrow by hand, scale the tokens away
# from where they were, and look at the variance of what the attention says.

# %%
torch.manual_seed(0)
attention = sgpa.SparseGPAttention(dim=8, num_heads=2, num_inducing=8, initial_posterior="prior")
scales = torch.linspace(0, 6, 40)
with torch.no_grad():
    attention.raw_inducing_factor -= 3 * torch.eye(8)  # its diagonal is a logarithm
    variance = torch.stack(
        [attention.posterior(scale * rows[None]).variance.mean(dim=(1, 2, 3)) for scale in scales]
    )
plt.figure(figsize=(6, 3))
plt.plot(scales, variance, label=["head 1", "head 2"])
plt.xlabel("tokens times")
plt.ylabel("mean variance")
plt.legend()
plt.show()
