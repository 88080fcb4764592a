"""Image models as pipelines of diffusers: folders, samples and samplers."""

import diffusers
import numpy as np
import pytest
import torch

from pseudovideo import ImageDiffusion, ImageDiffusionConfig
from pseudovideo.integrations.diffusers import PseudoVideoPipeline
from pseudovideo.integrations.diffusers.ddpm import to_ddpm_pipeline


def tiny(num_steps=40, schedule="cosine", **changes) -> ImageDiffusion:
    """A model whose output is not zero."""
    sizes = {"image_size": 8, "channels": 1, "base_channels": 8, "num_groups": 4, "num_heads": 2}
    sizes |= {"channel_multipliers": (1, 2), "attention_sizes": (4,), "num_res_blocks": 1}
    torch.manual_seed(0)
    model = ImageDiffusion(
        ImageDiffusionConfig(**{**sizes, **changes}, num_steps=num_steps, schedule=schedule)
    )
    for value in model.parameters():
        value.data += 0.1 * torch.randn_like(value)
    return model.eval()


def read(folder):
    return PseudoVideoPipeline.from_pretrained(folder).model


def drawn(pipeline, steps=5, **options):
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(3)
    given = {"num_inference_steps": steps, "generator": generator, "output_type": "np"}
    return pipeline(2, **{**given, **options}).images


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
@pytest.mark.parametrize("num_steps", [40, 1000])
def test_the_network_and_every_step_are_the_models(num_steps, prediction):
    model, generator = tiny(num_steps, prediction=prediction), torch.Generator().manual_seed(0)
    pipeline = to_ddpm_pipeline(model)
    unet, scheduler, process = pipeline.unet, pipeline.scheduler, model.diffusion
    scheduler.set_timesteps(num_steps)
    for t in (num_steps * 9 // 10, num_steps // 2, 1):
        x = torch.randn(2, 1, 8, 8, generator=generator)
        times = torch.full((2,), t)
        with torch.no_grad():
            output, found = model(x, process.model_times(times)), unet(x, t).sample
        assert torch.equal(output, found)
        seed = torch.Generator().manual_seed(1)
        after = scheduler.step(found, torch.tensor(t), x, generator=seed).prev_sample
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        # diffusers' tables are float32: at t = 1 of 1,000, 1 − ᾱ of 2e-4 has a relative error of
        # 3e-4, which multiplies x_0 − x_t. It is small for a noise, and up to 5 for an image.
        atol = 2e-3 if prediction == "x0" else 2e-4
        expected = process.step(output, x, times, noise)
        torch.testing.assert_close(after, expected, atol=atol, rtol=5e-4)


@pytest.mark.parametrize("num_steps", [40, 1000])
def test_diffusers_alone_reads_the_folder_and_draws_the_same_to_the_last_bit(tmp_path, num_steps):
    pipeline = to_ddpm_pipeline(tiny(num_steps))
    pipeline.save_pretrained(tmp_path)
    again = diffusers.DDPMPipeline.from_pretrained(tmp_path, use_safetensors=True)
    expected = drawn(pipeline)
    assert expected.shape == (2, 8, 8, 1)
    assert expected.std() > 0.01
    np.testing.assert_array_equal(drawn(again), expected)


@pytest.mark.parametrize(
    ("num_steps", "schedule", "prediction"),
    [(40, "cosine", "epsilon"), (1000, "linear", "v"), (40, "cosine", "x0")],
)
def test_a_folder_comes_back_as_the_model(tmp_path, num_steps, schedule, prediction):
    model = tiny(num_steps, schedule, prediction=prediction)
    to_ddpm_pipeline(model).save_pretrained(tmp_path)
    again = read(tmp_path)
    assert again.config == model.config
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ["fixed_small", "fixed_large"])
def test_fixed_variances_become_constant_learned_ones(tmp_path, kind):
    pipeline = to_ddpm_pipeline(tiny(1000, "linear"))
    config = {name: own for name, own in pipeline.unet.config.items() if name[0] != "_"}
    torch.manual_seed(1)
    unet = diffusers.UNet2DModel(**{**config, "out_channels": 1}).eval()
    scheduler = diffusers.DDPMScheduler(variance_type=kind)  # its defaults: linear, 1,000 steps
    diffusers.DDPMPipeline(unet=unet, scheduler=scheduler).save_pretrained(tmp_path)
    model = read(tmp_path)
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for t in (900, 500, 1):
        seed = torch.Generator().manual_seed(1)
        with torch.no_grad():
            output = model(x, model.diffusion.model_times(torch.full((2,), t)))
            after = scheduler.step(unet(x, t).sample, torch.tensor(t), x, generator=seed)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        expected = model.diffusion.step(output, x, torch.full((2,), t), noise)
        torch.testing.assert_close(after.prev_sample, expected, atol=2e-4, rtol=5e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "count"),
    [("DDIM", 500), ("DPMSolverMultistep", 50), ("UniPCMultistep", 50), ("HeunDiscrete", 50)],
)
def test_other_samplers_of_diffusers_solve_the_same_equation(kind, count):
    """That of the probability flow, here of Gaussian images."""
    spread, steps = 0.2, 1000

    class Best(torch.nn.Module):
        """E[noise | x_t] of images N(0, spread²)."""

        def __init__(self, unet, kept):
            super().__init__()
            self.config, self.dtype, self.kept = unet.config, unet.dtype, kept

        def forward(self, x, t):
            kept = self.kept[t.long()] if t.ndim == 0 else self.kept[t.long()][0]
            noise = (1 - kept).sqrt() / (kept * spread**2 + 1 - kept) * x
            return diffusers.models.unets.unet_2d.UNet2DOutput(noise)

    pipeline = to_ddpm_pipeline(tiny(steps, "linear"), variance="fixed")
    scheduler = getattr(diffusers, f"{kind}Scheduler")
    options = {"timestep_spacing": "linspace"}
    own = scheduler.from_config(pipeline.scheduler.config, **options)
    kept = pipeline.scheduler.alphas_cumprod
    own.set_timesteps(count)
    network = Best(pipeline.unet, kept)
    x = start = torch.randn(4000, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    x = x * own.init_noise_sigma
    for t in own.timesteps:
        given = own.scale_model_input(x, t)
        x = own.step(network(given, t).sample, t, x).prev_sample
    # Its solution, where images are not clipped at 1.
    torch.testing.assert_close(x, spread * start, rtol=0.05, atol=0.01)


def test_what_the_other_side_cannot_hold_is_refused(tmp_path):
    both = tiny(attention_sizes=(8, 4))
    with pytest.raises(ValueError, match=r"attention at levels of one width.*got \[8, 16\]"):
        to_ddpm_pipeline(both)
    with pytest.raises(FileNotFoundError, match=r"has no model_index\.json"):
        read(tmp_path)
    pipeline = to_ddpm_pipeline(tiny(1000))
    config = {name: own for name, own in pipeline.unet.config.items() if name[0] != "_"}

    def saved(name, unet=None, **changes):
        scheduler = diffusers.DDPMScheduler.from_config(pipeline.scheduler.config, **changes)
        own = pipeline.unet if unet is None else diffusers.UNet2DModel(**{**config, **unet})
        diffusers.DDPMPipeline(unet=own, scheduler=scheduler).save_pretrained(tmp_path / name)
        return tmp_path / name

    with pytest.raises(ValueError, match="clip_sample=False"):
        read(saved("unclipped", clip_sample=False))
    with pytest.raises(ValueError, match="linear or the cosine schedule of 1000 steps"):
        read(saved("betas", trained_betas=[0.02] * 1000))
    with pytest.raises(ValueError, match=r"differs in .'resnet_time_scale_shift': 'default'"):
        read(saved("shift", unet={"resnet_time_scale_shift": "default"}))
    with pytest.raises(ValueError, match=r"differs in .'out_channels': 1"):
        read(saved("fixed", unet={"out_channels": 1}))
