"""The terms of a generative adversarial game that one backward pass can serve.

The generator's term sees the discriminator's parameters detached, the discriminator's terms see
detached images: in the sum of all of them each network has exactly its own gradient, so that one
`backward` and one optimizer do for both what alternating steps do with two.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


def hinge_generator_loss(
    discriminator: nn.Module, fake: Float[Tensor, "b c y x"]
) -> Float[Tensor, ""]:
    """Return −E D(fake), with gradients to `fake` alone."""
    frozen = {name: value.detach() for name, value in discriminator.named_parameters()}
    return -functional_call(discriminator, frozen, (fake,)).mean()


def hinge_discriminator_loss(
    real: Float[Tensor, "*b"], fake: Float[Tensor, "*b"]
) -> Float[Tensor, ""]:
    """Return E max(0, 1 − D(real)) + E max(0, 1 + D(fake)), of logits; detach the fake images."""
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def r1_penalty(discriminator: nn.Module, images: Float[Tensor, "b c y x"]) -> Float[Tensor, ""]:
    """Return the mean over images of ‖∇ₓD(x)‖², D(x) being the mean logit of the image's patches.

    In the parameters' precision whatever autocast says, since gradients of gradients of bfloat16
    are mostly noise. (Mescheder et al. 2018; StyleGAN2 has γ/2 of it at every 16th step, times
    16.)
    """
    with torch.autocast(images.device.type, enabled=False):
        dtype = next(discriminator.parameters()).dtype
        x = images.detach().to(dtype).requires_grad_()
        logits = discriminator(x).flatten(1).mean(dim=1)
        (slope,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
    return slope.square().flatten(1).sum(dim=1).mean()


def adaptive_weight(
    reconstruction: Float[Tensor, ""],
    adversarial: Float[Tensor, ""],
    last_layer: Tensor,
    *,
    largest: float,
) -> Float[Tensor, ""]:
    """Return ‖∇L_rec‖ / ‖∇L_gan‖ at the decoder's last layer, in 0..`largest` (VQGAN, eq. 7).

    L_rec has the perceptual term included, L_gan is the generator's term. A constant: `largest`
    where the adversarial gradient vanishes, 0 where one is not finite.
    """
    norms = [
        torch.autograd.grad(loss, last_layer, retain_graph=True)[0].norm()
        for loss in (reconstruction, adversarial)
    ]
    ratio = norms[0] / (norms[1] + 1e-6)
    return torch.nan_to_num(ratio, nan=0.0, posinf=0.0).clamp(max=largest)
