"""Public functions of ``pseudovideo`` succeed with numbers or refuse by name, whatever they get."""

import tempfile
from dataclasses import replace
from functools import wraps

import torch
from hypothesis import strategies as st

import pseudovideo
from fuzzing.annotations import derive
from fuzzing.arguments import COUNTS, GENERATORS, bools, built, labels, positive, tensors, unit
from fuzzing.fuzz import FuzzSuite, Target
from pseudovideo import TokenizerConfig, corruptions, diffusion, hvae, layers, priors, tokenizers

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


VIDEO = dict(
    num_frames=st.integers(2, 4),
    kind=st.sampled_from(corruptions.CORRUPTIONS),
    blur_rate=st.sampled_from([0.05, 0.3]),
    beta_min=st.just(1e-4),
    beta_max=st.just(0.05),
)
VIDEOS = built(corruptions.PseudoVideoConfig, **VIDEO)


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
    num_frames=st.just(3), context=st.integers(1, 2), one_way=st.booleans()
)
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
    **arguments(revive_below=0.01),
)
QUANTIZERS = built(tokenizers.VectorQuantizer, **QUANTIZER)
OBJECTIVE = dict(
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


def average():
    return pseudovideo.WeightAverage(torch.nn.Linear(2, 1), 0.9)


@wraps(pseudovideo.cached_tokens)
def cached_tokens(tokenizer, images, config, seed, batch_size):
    with tempfile.TemporaryDirectory() as folder:
        cache = pseudovideo.cached_tokens(
            folder, tokenizer, images, config, seed=seed, batch_size=batch_size
        )
        return pseudovideo.TokenCache.open(folder).tokens, cache.seed


# Calls whose counts are cut short, or that take a folder.
SAMPLERS = [
    Target(
        few(corruptions.blur_matrices, num_frames=3),
        dict(size=st.just(8), num_frames=COUNTS, rate=st.sampled_from([0.05, 0.3])),
    ),
    Target(few(diffusion.ImageDiffusion.sample, n=2), dict(self=IMAGE_MODELS, **SAMPLING)),
    Target(few(diffusion.VideoDiffusion.sample, n=2), dict(self=VIDEO_MODELS, **SAMPLING)),
    Target(
        few(diffusion.VideoDiffusion.predict_frames, num_samples=1),
        dict(self=VIDEO_MODELS, videos=FRAMES, frame=st.just(2), num_samples=st.just(1))
        | {name: SAMPLING[name] for name in ("num_steps", "eta", "generator", "batch_size")},
    ),
    Target(
        few(hvae.HVAE.sample, n=2),
        dict(
            self=HVAE_MODELS,
            images=IMAGES,
            **{name: DRAW[name] for name in ("n", "generator")},
            batch_size=COUNTS,
        ),
    ),
    *(
        Target(few(method, n=2), dict(self=models, **options, **more))
        for models, kind, options in (
            (CAUSAL_PRIORS, priors.AutoregressivePrior, CAUSAL_DRAW),
            (MASKED_PRIORS, priors.MaskedPrior, MASKED_DRAW),
        )
        for method, more in (
            (kind.sample_tokens, {}),
            (kind.sample, dict(tokenizer=TOKENIZERS, batch_size=COUNTS)),
        )
    ),
    Target(
        cached_tokens,
        dict(
            tokenizer=TOKENIZERS,
            images=tensors("b 1 8 8", unit, SINGLE),
            config=VIDEOS.map(lambda config: replace(config, num_frames=4)),
            seed=SEEDS,
            batch_size=COUNTS,
        ),
    ),
]
READS = "reads files that its own tests damage"
NOT_FUZZED = {
    "Corruption.*": "the kinds' methods are called by pseudo_videos",
    "load_*": READS,
    "TokenCache*": READS,
    "*Spec*": "plain settings: `probseq.settings` is tested with all of its types",
    "*Config": "plain settings, which the models here are built of",
    "TransformerSizes": "plain settings",
    "*.check": "what a setting's own bounds do not say; takes nothing",
    "*.stage_network": "a part of FrameDiffusion.sample",
    "denoise": "a part of FrameDiffusion.sample",
    "bits_per_dim": "ImageDiffusion.bits_per_dim calls it",
    "HVAE": "abstract: its subclasses are fuzzed",
    "HVAE.level_terms": "a part of HVAE.bound",
    "*.prior_kl": "a part of HVAE.bound",
    "*.draw_prior": "a part of HVAE.sample",
    "Tokenizer": "abstract: its subclasses are fuzzed",
    "PerceptualLoss*": "needs a network of distances",
    "WeightAverage.[ax]*": "take nothing",
    "WeightAverage.state_dict": "takes nothing",
    "StackDecoder*": "made by AutoregressivePrior.sample_tokens",
    "build_token_prior": "made of a prior's config",
}
TWO_OUTPUTS = dict(output=OUTPUT, x_t=ONE_CHANNEL, noise=ONE_CHANNEL, limit=LIMIT)
OBJECTIVES = built(
    tokenizers.TokenizerObjective,
    tokenizer=TOKENIZERS,
    config=built(tokenizers.ObjectiveConfig, **OBJECTIVE),
)
TRAINING = dict(images=IMAGES, videos=FRAMES, t=STEPS, labels=st.none(), generator=GENERATORS)
ENTRIES = {
    "prediction_error": dict(frame=st.just(1), context=st.sampled_from([(0,), ()])),
    "GaussianDiffusion": dict(
        betas=st.integers(25, 40).map(diffusion.linear_betas),
        timesteps=st.none(),
        original_steps=st.none(),
    ),
    "GaussianDiffusion.*": dict(
        **dict(self=PROCESSES, t=STEPS, count=FEW_STEPS, eta=st.sampled_from([0.0, 0.5, 1.0])),
        **dict.fromkeys(("x0", "x_t", "noise", "eps", "predicted"), STATE),
    ),
    "GaussianDiffusion.make": dict(num_steps=st.just(30)),
    **dict.fromkeys(("GaussianDiffusion.p_mean*", "GaussianDiffusion.*step"), TWO_OUTPUTS),
    "hybrid_losses": dict(diffusion=PROCESSES, x0=ONE_CHANNEL, t=STEPS, **TWO_OUTPUTS),
    "ImageDiffusion.*": dict(self=IMAGE_MODELS, x_t=IMAGES, progress=st.none(), **TRAINING)
    | dict(times=tensors("b", positive, SINGLE)),
    "VideoDiffusion": dict(config=VIDEO_CONFIGS),
    "VideoDiffusion.*": dict(self=VIDEO_MODELS, num_steps=FEW_STEPS, **TRAINING),
    "DiffusionObjective": dict(model=IMAGE_MODELS | VIDEO_MODELS),
    "DiffusionObjective.*": dict(
        self=built(diffusion.DiffusionObjective, model=VIDEO_MODELS), **TRAINING
    ),
    "HVAE.*": dict(self=HVAE_MODELS, z=IMAGES, **TRAINING | dict(t=LEVEL)),
    **{
        f"{kind.__name__}.*": dict(
            self=built(kind, config=HVAE_CONFIGS), **TRAINING | dict(t=LEVEL, z=IMAGES)
        )
        for kind in (hvae.HeatHVAE, hvae.LearnedEncoderHVAE)
    },
    "VectorQuantizer": QUANTIZER,
    "VectorQuantizer.*": dict(self=QUANTIZERS, z=tensors("b n 6", dtype=SINGLE)),
    "build_tokenizer": dict(config=VIDEO_SIZES | IMAGE_SIZES),
    "VQVAE": dict(config=IMAGE_SIZES),
    "CViViT": dict(config=VIDEO_SIZES),
    **{
        key: dict(self=TOKENIZERS, videos=CLIPS, indices=TOKENS)
        for key in ("Tokenizer.*", "CViViT.*")
    },
    "VQVAE.*": dict(
        self=built(tokenizers.VQVAE, config=IMAGE_SIZES),
        videos=tensors("b 1 1 8 8", unit, SINGLE),
        indices=labels("b 1 2 2", "8"),
    ),
    "Discriminator": arguments(channels=1, image_size=16, width=4),
    "Discriminator.*": dict(
        self=built(tokenizers.Discriminator, channels=1, image_size=16, width=4),
        images=tensors("b 1 16 16", unit, SINGLE),
    ),
    "TokenizerObjective": dict(
        tokenizer=TOKENIZERS,
        config=built(tokenizers.ObjectiveConfig, **OBJECTIVE),
        perceptual=st.none(),
    ),
    "TokenizerObjective.*": dict(self=OBJECTIVES, videos=CLIPS, step=st.integers(0, 3)),
    "AutoregressivePrior.*": dict(self=CAUSAL_PRIORS, tokens=TOKENS, labels=st.none()),
    "MaskedPrior.*": dict(self=MASKED_PRIORS, tokens=TOKENS, labels=st.none()),
    "MaskedPrior.forward": dict(tokens=labels("b 8", "8"), masked=bools("b 8"), indices=st.none()),
    "Block.*": dict(self=built(layers.Block, dim=4, num_heads=2), x=INNER),
    "WeightAverage": dict(model=st.just(torch.nn.Linear(2, 1)), decay=st.sampled_from([0.5, 0.9])),
    "WeightAverage.*": dict(
        self=built(average),
        step=st.integers(0, 9),
        state=built(average).map(pseudovideo.WeightAverage.state_dict),
    ),
}
MODULES = (pseudovideo, corruptions, diffusion, hvae, layers, priors, tokenizers)


TARGETS = derive(
    MODULES,
    NOT_FUZZED,
    SAMPLERS,
    entries=ENTRIES,
    words=dict.fromkeys(("GaussianDiffusion.model_times", "VectorQuantizer.lookup"), ""),
)


class TestFuzz(FuzzSuite):
    modules = MODULES
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 3
