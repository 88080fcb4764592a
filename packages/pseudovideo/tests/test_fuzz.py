"""Public functions of ``pseudovideo`` succeed with numbers or refuse by name, whatever they get."""

import tempfile
from dataclasses import replace
from functools import wraps

import torch
from hypothesis import strategies as st

import pseudovideo
from fuzzing.annotations import derive
from fuzzing.arguments import (
    COUNTS,
    GENERATORS,
    PASSES,
    bools,
    built,
    covariance,
    images,
    labels,
    positive,
    size,
    tensors,
    unit,
)
from fuzzing.fuzz import FuzzSuite, Target
from pseudovideo import (
    TokenizerConfig,
    corruptions,
    diffusion,
    hvae,
    layers,
    priors,
    tokenizers,
)

SINGLE, DOUBLE = torch.float32, torch.float64
SEEDS = st.integers(0, 9)


def few(method, **counts):
    """Call a method with valid counts cut short: 10⁶ samples are no mistake, but hours of work."""

    @wraps(method)
    def call(**arguments):
        for name, most in counts.items():
            if arguments[name] == 10**6:
                arguments[name] = most
        return method(**arguments)

    return call


def arguments(**values):
    """Strategies of constants."""
    return {name: st.just(value) for name, value in values.items()}


# -- Pseudo videos ----------------------------------------------------------------------------

VIDEO = dict(
    num_frames=st.integers(2, 4),
    kind=st.sampled_from(corruptions.CORRUPTIONS),
    blur_rate=st.sampled_from([0.05, 0.3]),
    beta_min=st.just(1e-4),
    beta_max=st.just(0.05),
)
VIDEOS = built(corruptions.PseudoVideoConfig, **VIDEO)
NOISES = built(
    corruptions.PseudoVideoConfig,
    **VIDEO | dict(kind=st.sampled_from([k for k in corruptions.CORRUPTIONS if "noise" in k])),
)
SPECTRUM = tensors("d", positive)


@wraps(corruptions.video_moments)
def video_moments(mean, covariance, config):
    """Without names: what is made of no covariance is none, and its diagonal may have any sign."""
    return tuple(corruptions.video_moments(mean, covariance, config))


CORRUPTION_TARGETS = [
    Target(
        few(corruptions.blur_matrices, num_frames=3),
        dict(size=st.just(8), num_frames=COUNTS, rate=st.sampled_from([0.05, 0.3])),
    ),
    Target(corruptions.noise_coefficients, dict(config=NOISES)),
    Target(
        corruptions.prediction_error,
        dict(
            spectrum=SPECTRUM,
            config=NOISES,
            frame=st.just(1),
            context=st.sampled_from([(0,), ()]),
        ),
    ),
    Target(
        corruptions.prediction_errors,
        dict(spectrum=SPECTRUM, config=NOISES, context=st.none() | COUNTS),
    ),
    Target(
        video_moments,
        dict(mean=images("1 4 4"), covariance=tensors("16 16", covariance), config=VIDEOS),
        non_finite=PASSES,
    ),
]

# -- Diffusion --------------------------------------------------------------------------------

UNET = arguments(
    image_size=8,
    channels=1,
    base_channels=8,
    channel_multipliers=(1, 2),
    num_res_blocks=1,
    attention_sizes=(4,),
    num_heads=2,
    num_groups=4,
    dropout=0.0,
)
SCHEDULES = st.sampled_from(["linear", "cosine"])
IMAGE_DIFFUSION = UNET | dict(num_steps=st.just(30), schedule=SCHEDULES)
VIDEO_DIFFUSION = IMAGE_DIFFUSION | dict(
    num_frames=st.just(3),
    context=st.integers(1, 2),
    masks=st.sampled_from(["stages", "random"]),
    one_way=st.booleans(),
)
UNETS = built(diffusion.UNetConfig, **UNET)
PROCESSES = built(diffusion.GaussianDiffusion.make, num_steps=30, schedule=SCHEDULES)
IMAGE_CONFIGS = built(diffusion.ImageDiffusionConfig, **IMAGE_DIFFUSION)
VIDEO_CONFIGS = built(diffusion.VideoDiffusionConfig, **VIDEO_DIFFUSION)
IMAGE_MODELS = built(diffusion.ImageDiffusion, config=IMAGE_CONFIGS)
VIDEO_MODELS = built(diffusion.VideoDiffusion, config=VIDEO_CONFIGS)
IMAGES = tensors("b 1 8 8", unit, SINGLE)
FRAMES = tensors("b 3 1 8 8", unit, SINGLE)
STEPS = labels("b", "30")
STATE = tensors("b c h w")
OUTPUT = tensors("b 2 h w")
ONE_CHANNEL = tensors("b 1 h w")
LIMIT = st.sampled_from([None, 1.0])
FEW_STEPS = st.sampled_from([2, 3])
SAMPLING = dict(
    n=st.integers(1, 2),
    num_steps=FEW_STEPS,
    eta=st.sampled_from([None, 0.0, 1.0]),
    generator=GENERATORS,
    batch_size=COUNTS,
)


@wraps(diffusion.denoise)
def denoise(x_start, diffusion_, eta, limit):
    def model(x, times):
        return torch.cat([x, x], 1)

    return diffusion.denoise(
        model,
        x_start,
        diffusion_,
        step_noise=lambda step: torch.zeros_like(x_start),
        eta=eta,
        limit=limit,
    )


@wraps(diffusion.bits_per_dim)
def bits_per_dim(x0, diffusion_, generator):
    def model(x, times):
        return torch.cat([x, x], 1)

    return diffusion.bits_per_dim(model, x0, diffusion_, generator=generator)


DIFFUSION_TARGETS = [
    Target(
        diffusion.GaussianDiffusion,
        dict(
            betas=st.integers(25, 40).map(diffusion.linear_betas),
            timesteps=st.none(),
            original_steps=st.none(),
        ),
    ),
    Target(
        diffusion.hybrid_losses,
        dict(
            diffusion=PROCESSES,
            output=OUTPUT,
            x0=ONE_CHANNEL,
            x_t=ONE_CHANNEL,
            noise=ONE_CHANNEL,
            t=STEPS,
        ),
        non_finite=PASSES,
    ),
    Target(
        denoise,
        dict(
            x_start=ONE_CHANNEL,
            diffusion_=PROCESSES,
            eta=SAMPLING["eta"],
            limit=st.just(1.0),
        ),
    ),
    Target(
        bits_per_dim,
        dict(x0=ONE_CHANNEL, diffusion_=PROCESSES, generator=GENERATORS),
    ),
    *(
        Target(method, dict(self=built(diffusion.ImportanceTimes, num_steps=3), **more))
        for method, more in (
            (diffusion.ImportanceTimes.sample, dict(b=COUNTS, generator=GENERATORS)),
            (
                diffusion.ImportanceTimes.update,
                dict(t=labels("b", "3"), losses=tensors("b", positive)),
            ),
        )
    ),
    Target(diffusion.UNetConfig, UNET),
    Target(
        few(diffusion.build_unet, in_channels=1, out_channels=2),
        dict(
            config=built(diffusion.UNetConfig, **UNET), **arguments(in_channels=1, out_channels=2)
        ),
    ),
    Target(diffusion.ImageDiffusionConfig, IMAGE_DIFFUSION),
    Target(diffusion.VideoDiffusionConfig, VIDEO_DIFFUSION),
    Target(diffusion.ImageDiffusion, dict(config=IMAGE_CONFIGS)),
    Target(diffusion.VideoDiffusion, dict(config=VIDEO_CONFIGS)),
    Target(
        diffusion.ImageDiffusion.forward,
        dict(self=IMAGE_MODELS, x_t=IMAGES, times=tensors("b", positive, SINGLE)),
        non_finite=PASSES,
    ),
    Target(
        diffusion.ImageDiffusion.training_losses,
        dict(self=IMAGE_MODELS, images=IMAGES, t=STEPS, generator=GENERATORS),
        non_finite=PASSES,
    ),
    Target(few(diffusion.ImageDiffusion.sample, n=2), dict(self=IMAGE_MODELS, **SAMPLING)),
    Target(
        diffusion.ImageDiffusion.bits_per_dim,
        dict(self=IMAGE_MODELS, images=IMAGES, generator=GENERATORS),
    ),
    Target(
        diffusion.VideoDiffusion.training_losses,
        dict(self=VIDEO_MODELS, videos=FRAMES, t=STEPS, generator=GENERATORS),
        non_finite=PASSES,
    ),
    Target(few(diffusion.VideoDiffusion.sample, n=2), dict(self=VIDEO_MODELS, **SAMPLING)),
    Target(
        few(diffusion.VideoDiffusion.predict_frames, num_samples=1),
        dict(self=VIDEO_MODELS, videos=FRAMES, frame=st.just(2), num_samples=st.just(1))
        | {name: SAMPLING[name] for name in ("num_steps", "eta", "generator", "batch_size")},
    ),
    Target(
        diffusion.VideoDiffusion.evaluations_per_sample,
        dict(self=VIDEO_MODELS, num_steps=FEW_STEPS),
    ),
    Target(
        diffusion.DiffusionObjective,
        dict(model=IMAGE_MODELS | VIDEO_MODELS, importance=st.booleans()),
    ),
    Target(
        diffusion.DiffusionObjective.forward,
        dict(
            self=built(diffusion.DiffusionObjective, model=VIDEO_MODELS, importance=st.booleans()),
            videos=FRAMES,
            generator=GENERATORS,
        ),
        non_finite=PASSES,
    ),
]

# -- Hierarchical autoencoders ----------------------------------------------------------------

LEVELS = UNET | dict(
    num_levels=st.integers(2, 4),
    sigma_min=st.just(0.5),
    sigma_max=st.just(6.0),
    noise_std=st.just(0.02),
    delta_factor=st.just(1.25),
)
HVAE_CONFIGS = built(hvae.HVAEConfig, **LEVELS)
HVAE_MODELS = built(hvae.HeatHVAE, config=HVAE_CONFIGS) | built(
    hvae.LearnedEncoderHVAE, config=HVAE_CONFIGS
)
# From 1 on; z_t of level t, 2 being the least number of levels.
LEVEL = tensors("b", lambda shape, generator: torch.ones(shape), torch.int64)

HVAE_TARGETS = [
    Target(hvae.HVAEConfig, LEVELS),
    Target(hvae.HeatHVAE, dict(config=HVAE_CONFIGS)),
    Target(hvae.LearnedEncoderHVAE, dict(config=HVAE_CONFIGS)),
    Target(
        hvae.HVAE.training_losses,
        dict(self=HVAE_MODELS, images=IMAGES, generator=GENERATORS),
        non_finite=PASSES,
    ),
    Target(hvae.HVAE.bound, dict(self=HVAE_MODELS, images=IMAGES, generator=GENERATORS)),
    Target(hvae.HVAE.decode, dict(self=HVAE_MODELS, z=IMAGES, t=LEVEL), non_finite=PASSES),
    *(
        Target(
            kind.encode,
            dict(self=built(kind, config=HVAE_CONFIGS), images=IMAGES, t=LEVEL),
            non_finite=PASSES,
        )
        for kind in (hvae.HeatHVAE, hvae.LearnedEncoderHVAE)
    ),
    Target(
        few(hvae.HVAE.sample, n=2),
        dict(
            self=HVAE_MODELS,
            n=st.integers(1, 2),
            images=IMAGES,
            generator=GENERATORS,
            batch_size=COUNTS,
        ),
    ),
]

# -- Tokens -----------------------------------------------------------------------------------

TOKENIZER = arguments(
    num_frames=4,
    image_size=8,
    channels=1,
    patch_size=4,
    temporal_patch=2,
    dim=8,
    num_heads=2,
    spatial_depth=1,
    temporal_depth=1,
    codebook_size=8,
    code_dim=4,
    causal=True,
    commitment=0.25,
    decay=0.99,
    revive_below=0.01,
) | dict(stem=st.sampled_from(["plain", "layernorm"]))
VIDEO_SIZES = built(TokenizerConfig, **TOKENIZER)
IMAGE_SIZES = VIDEO_SIZES.map(
    lambda c: replace(c, num_frames=1, temporal_patch=1, temporal_depth=0)
)
TOKENIZERS = built(tokenizers.CViViT, config=VIDEO_SIZES)
CLIPS = tensors("b 4 1 8 8", unit, SINGLE)
TOKENS = labels("b 2 2 2", "8")
QUANTIZER = dict(
    **arguments(codebook_size=8, code_dim=4, dim=6, decay=0.99, commitment=0.25),
    **arguments(revive_below=0.01, kmeans_steps=2),
)
QUANTIZERS = built(tokenizers.VectorQuantizer, **QUANTIZER)
OBJECTIVE = dict(
    frame_weights=st.sampled_from([None, (1.0, 2.0, 3.0, 4.0)]),
    frame=st.sampled_from(["random", "last"]),
    perceptual_weight=st.just(0.0),
    adversarial_weight=st.just(0.0),
    **arguments(adversarial_start=0, adaptive_max=1.0, r1_weight=0.1, r1_every=1),
    discriminator_width=st.just(4),
)
PRIOR = dict(codebook_size=st.just(8), grid=st.just((2, 2, 2)), tokenizer_fingerprint=st.none())
PRIOR |= arguments(dim=8, depth=1, num_heads=2)
AUTOREGRESSIVE = built(priors.AutoregressiveConfig, **PRIOR)
MASKED = built(priors.MaskedConfig, **PRIOR)
CAUSAL_PRIORS = built(priors.AutoregressivePrior, config=AUTOREGRESSIVE)
MASKED_PRIORS = built(priors.MaskedPrior, config=MASKED)
DRAW = dict(n=st.integers(1, 2), generator=GENERATORS, temperature=st.sampled_from([0.0, 1.0]))
CAUSAL_DRAW = DRAW | dict(top_k=st.none() | COUNTS, top_p=st.sampled_from([None, 0.9]))
MASKED_DRAW = DRAW | dict(num_steps=COUNTS, choice_temperature=st.just(4.5))
INNER = tensors("b n 4", dtype=SINGLE)


def k_means(config):
    torch.manual_seed(0)
    model = tokenizers.PatchKMeans(config)
    model.fit(torch.rand(20, 4, 1, 8, 8), iterations=1)
    return model


@wraps(layers.StackDecoder.step)
@torch.no_grad()
def stack_step(batch_size, max_length, x):
    blocks = [layers.Block(4, 2, gated=False)]
    return layers.StackDecoder(blocks, batch_size, max_length).step(x)


@wraps(pseudovideo.write_token_cache)
def write_token_cache(tokenizer, images, config, seed, batch_size):
    with tempfile.TemporaryDirectory() as folder:
        cache = pseudovideo.write_token_cache(
            folder, tokenizer, images, config, seed=seed, batch_size=batch_size
        )
        return pseudovideo.TokenCache.open(folder, seed=seed).tokens, cache.seed


TOKEN_TARGETS = [
    Target(tokenizers.build_tokenizer, dict(config=VIDEO_SIZES | IMAGE_SIZES)),
    Target(tokenizers.VQVAE, dict(config=IMAGE_SIZES)),
    *(
        Target(method, dict(self=TOKENIZERS, videos=CLIPS), non_finite=words)
        for method, words in (
            (tokenizers.Tokenizer.forward, PASSES),
            (tokenizers.Tokenizer.encode, ""),
            (tokenizers.Tokenizer.reconstruct, ""),
        )
    ),
    Target(tokenizers.Tokenizer.decode, dict(self=TOKENIZERS, indices=TOKENS)),
    Target(
        few(tokenizers.PatchKMeans.fit, iterations=3),
        dict(
            self=built(tokenizers.PatchKMeans, config=VIDEO_SIZES),
            videos=tensors("8 4 1 8 8", unit, SINGLE),
            iterations=COUNTS,
            generator=GENERATORS,
        ),
    ),
    *(
        Target(method, dict(self=built(k_means, config=VIDEO_SIZES), videos=CLIPS))
        for method in (tokenizers.PatchKMeans.encode, tokenizers.PatchKMeans.reconstruct)
    ),
    Target(
        tokenizers.PatchKMeans.decode,
        dict(self=built(k_means, config=VIDEO_SIZES), indices=TOKENS),
    ),
    Target(
        tokenizers.VectorQuantizer.forward,
        dict(self=QUANTIZERS, z=tensors("b n 6", dtype=SINGLE)),
        non_finite=PASSES,
    ),
    Target(
        tokenizers.VectorQuantizer.encode,
        dict(self=QUANTIZERS, z=tensors("b n 6", dtype=SINGLE)),
    ),
    Target(
        tokenizers.Discriminator,
        arguments(channels=1, image_size=16, width=4),
    ),
    Target(
        tokenizers.Discriminator.forward,
        dict(
            self=built(tokenizers.Discriminator, channels=1, image_size=16, width=4),
            images=tensors("b 1 16 16", unit, SINGLE),
        ),
        non_finite=PASSES,
    ),
    Target(
        tokenizers.TokenizerObjective,
        dict(
            tokenizer=TOKENIZERS,
            config=built(tokenizers.ObjectiveConfig, **OBJECTIVE),
            perceptual=st.none(),
        ),
    ),
    Target(
        tokenizers.TokenizerObjective.forward,
        dict(
            self=built(
                tokenizers.TokenizerObjective,
                tokenizer=TOKENIZERS,
                config=built(tokenizers.ObjectiveConfig, **OBJECTIVE),
            ),
            videos=CLIPS,
            step=st.integers(0, 3),
            generator=GENERATORS,
        ),
        non_finite=PASSES,
    ),
    Target(
        write_token_cache,
        dict(
            tokenizer=TOKENIZERS,
            images=tensors("b 1 8 8", unit, SINGLE)
            | labels("b 1 8 8", "100").map(torch.Tensor.byte),
            config=VIDEOS.map(lambda config: replace(config, num_frames=4)),
            seed=SEEDS,
            batch_size=COUNTS,
        ),
    ),
    Target(priors.AutoregressiveConfig, PRIOR),
    Target(priors.MaskedConfig, PRIOR),
    Target(priors.AutoregressivePrior, dict(config=AUTOREGRESSIVE)),
    Target(priors.MaskedPrior, dict(config=MASKED)),
    Target(priors.AutoregressivePrior.forward, dict(self=CAUSAL_PRIORS, tokens=TOKENS)),
    Target(priors.AutoregressivePrior.loss, dict(self=CAUSAL_PRIORS, tokens=TOKENS)),
    Target(
        few(priors.AutoregressivePrior.sample_tokens, n=2),
        dict(self=CAUSAL_PRIORS, cache=st.booleans(), **CAUSAL_DRAW),
    ),
    Target(
        few(priors.AutoregressivePrior.sample, n=2),
        dict(self=CAUSAL_PRIORS, tokenizer=TOKENIZERS, batch_size=COUNTS, **CAUSAL_DRAW),
    ),
    Target(
        priors.MaskedPrior.forward,
        dict(self=MASKED_PRIORS, tokens=labels("b 8", "8"), masked=bools("b 8")),
    ),
    Target(priors.MaskedPrior.loss, dict(self=MASKED_PRIORS, tokens=TOKENS, generator=GENERATORS)),
    Target(few(priors.MaskedPrior.sample_tokens, n=2), dict(self=MASKED_PRIORS, **MASKED_DRAW)),
    Target(
        few(priors.MaskedPrior.sample, n=2),
        dict(self=MASKED_PRIORS, tokenizer=TOKENIZERS, batch_size=COUNTS, **MASKED_DRAW),
    ),
    Target(
        layers.Block.forward,
        dict(self=built(layers.Block, dim=4, num_heads=2), x=INNER, causal=st.booleans()),
        non_finite=PASSES,
    ),
    Target(
        stack_step,
        dict(batch_size=size("b"), max_length=COUNTS, x=tensors("b 4", dtype=SINGLE)),
        non_finite=PASSES,
    ),
]


def average():
    return pseudovideo.WeightAverage(torch.nn.Linear(2, 1), 0.9)


AVERAGE_TARGETS = [
    Target(
        pseudovideo.WeightAverage,
        dict(model=st.just(torch.nn.Linear(2, 1)), decay=st.sampled_from([0.5, 0.9])),
    ),
    Target(pseudovideo.WeightAverage.update, dict(self=built(average), step=st.integers(0, 9))),
    Target(
        pseudovideo.WeightAverage.load_state_dict,
        dict(self=built(average), state=built(average).map(pseudovideo.WeightAverage.state_dict)),
    ),
]


READS = "reads files that its own tests damage"
NOT_FUZZED = {
    "Corruption.*": "the kinds' methods are called by pseudo_videos and video_moments",
    "Mixture*": "made of two kinds by the registry; it has no values to check",
    "load_*": READS,
    "*Spec*": "plain settings: `probseq.settings` is tested with all of its types",
    "TransformerSizes": "plain settings",
    "*.check": "what a setting's own bounds do not say; takes nothing",
    "TokenCache*": READS,
    "*.stage_network": "a part of FrameDiffusion.sample",
    "HVAE": "abstract: its subclasses are fuzzed",
    "HVAE.level_terms": "a part of HVAE.bound",
    "*.prior_kl": "a part of HVAE.bound",
    "*.draw_prior": "a part of HVAE.sample",
    "HVAE.descend": "a part of HVAE.sample",
    "Tokenizer": "abstract: its subclasses are fuzzed",
    "PerceptualLoss*": "needs a network of distances",
    "WeightAverage.*": "take nothing",
    "StackDecoder": "made by AutoregressivePrior.sample_tokens",
    "build_token_prior": "made of a prior's config, whose constructors are fuzzed",
}

TWO_OUTPUTS = dict(output=OUTPUT, x_t=ONE_CHANNEL, noise=ONE_CHANNEL, limit=LIMIT)
ENTRIES = {
    "PseudoVideoConfig": VIDEO,
    "pseudo_videos": dict(images=images("b c 8 8"), config=VIDEOS, index=labels("b", "100")),
    "counter_normal": dict(index=labels("b", "100")),
    "*_betas": dict(num_steps=st.integers(25, 40)),
    "GaussianDiffusion.*": dict(
        **dict(self=PROCESSES, t=STEPS, count=FEW_STEPS, eta=st.sampled_from([0.0, 0.5, 1.0])),
        **dict.fromkeys(("x0", "x_t", "noise", "eps", "predicted"), STATE),
    ),
    "GaussianDiffusion.add_noise": dict(t=STEPS | st.integers(0, 29)),
    "GaussianDiffusion.make": dict(num_steps=st.just(30)),
    **dict.fromkeys(("GaussianDiffusion.reverse", "GaussianDiffusion.*step"), TWO_OUTPUTS),
    "image_spectrum": dict(images=images("5 c h w")),
    "channel_multipliers_for": dict(image_size=st.sampled_from([16, 28, 32])),
    "ObjectiveConfig": OBJECTIVE,
    "TokenizerConfig": TOKENIZER,
    "TokenGrid": dict(shape=st.just((2, 2, 2))),
    "VectorQuantizer": QUANTIZER,
    "VectorQuantizer.lookup": dict(self=QUANTIZERS),
    "PatchKMeans": dict(config=VIDEO_SIZES),
    "CViViT": dict(config=VIDEO_SIZES),
    "CViViT.forward": dict(self=TOKENIZERS, videos=CLIPS),
    "VQVAE.forward": dict(
        self=built(tokenizers.VQVAE, config=IMAGE_SIZES),
        videos=tensors("b 1 1 8 8", unit, SINGLE),
    ),
}
OTHERS = [*AVERAGE_TARGETS, *CORRUPTION_TARGETS, *DIFFUSION_TARGETS, *HVAE_TARGETS, *TOKEN_TARGETS]
TARGETS = derive(
    [pseudovideo, corruptions, diffusion, hvae, layers, priors, tokenizers],
    NOT_FUZZED,
    OTHERS,
    entries=ENTRIES,
    words=dict.fromkeys(("GaussianDiffusion.model_times", "VectorQuantizer.lookup"), ""),
)


class TestFuzz(FuzzSuite):
    modules = (pseudovideo, corruptions, diffusion, hvae, layers, priors, tokenizers)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 3
