"""Public functions of ``ohsvgp`` succeed with numbers or refuse by name, whatever they get."""

import copy
import functools
import warnings

import numpy as np
import torch
from hypothesis import strategies as st

import ohsvgp
from fuzzing.annotations import derive
from fuzzing.arguments import COUNTS, GENERATORS, SCALES, bools, built, normal, size, tensors
from fuzzing.fuzz import FuzzSuite, Target
from ohsvgp import LostInformationWarning, OnlineGP, OnlineSVGPVAE, bases, likelihoods, vae
from ohsvgp.beyond import means
from ohsvgp.hippo import transitions
from probseq import kernels

DOUBLE = torch.float64
ADAM = built(bases.AdamSteps, steps=2, learning_rate=0.01)
MEMBERS = st.sampled_from([2, 4])

KERNELS = [kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52]
LIKELIHOODS = st.one_of(
    built(ohsvgp.Gaussian, noise=SCALES),
    built(ohsvgp.Bernoulli),
    built(ohsvgp.Poisson),
    built(ohsvgp.NegativeBinomial, dispersion=SCALES),
    built(ohsvgp.StudentT, df=st.just(4.0), scale=SCALES),
)
HIPPO = st.one_of(
    built(bases.LegS, num_inducing=MEMBERS),
    built(bases.LegT, num_inducing=MEMBERS, window=SCALES),
    built(bases.LagT, num_inducing=MEMBERS, timescale=SCALES),
    built(bases.FouT, num_inducing=st.just(3), window=SCALES),
)
POINTS = st.one_of(
    built(bases.PivotedCholesky, num_inducing=MEMBERS, learn=st.none() | ADAM),
    built(bases.RandomSubset, num_inducing=MEMBERS, learn=st.none() | ADAM),
)
TIME_BASES = st.one_of(
    HIPPO,
    built(bases.Cosine, num_inducing=MEMBERS),
    built(bases.UniformGrid, num_inducing=MEMBERS),
    built(bases.VariationalFourier, num_inducing=st.just(3), start=-1.0, end=20.0),
    built(
        bases.RecurrentFeatures,
        basis=HIPPO,
        num_features=st.just(5),
        step=st.sampled_from(["euler", "bilinear", "exact", "closed"]),
    ),
    POINTS,
)
POINT_BASES = POINTS | built(
    bases.Path,
    num_inducing=MEMBERS,
    memory=st.sampled_from(["features", "inputs"]),
    num_features=st.just(5),
    order=st.sampled_from(["given", "kernel-max", "kernel-min", "random"]),
)
DTYPES = st.sampled_from([torch.float64, torch.float32])


@st.composite
def kernel(draw, dim=1, batch_shape=()):
    kind = draw(st.sampled_from(KERNELS))
    return draw(built(kind, dim=dim, batch_shape=batch_shape, lengthscale=SCALES))


@st.composite
def times(draw, start=0.0, calendar=False, name="n"):
    """Sorted stamps, numbers or days, as users hold them."""
    steps = draw(st.lists(st.integers(0, 8), min_size=(n := draw(size(name))), max_size=n))
    stamps = start + np.cumsum(steps) / 8
    if calendar:
        return np.datetime64("2020-01-01") + np.round(stamps).astype("timedelta64[D]")
    return draw(st.sampled_from([stamps, torch.from_numpy(stamps), list(map(float, stamps))]))


def targets(name="n"):
    """Zeros and ones, which all likelihoods take."""
    return tensors(name, lambda *a: (normal(*a) > 0).double(), DOUBLE)


@st.composite
def models(draw, dim=1, calendar=False, least=0):
    """Online processes that have seen at most two batches."""

    def online_gp(kernel, likelihood, basis, dtype, rebase, batches):
        gp = OnlineGP(kernel, likelihood, basis, dtype=dtype, rebase=rebase)
        for batch in range(batches):
            x = torch.tensor([0.0, 0.5, 1.0], dtype=DOUBLE) + batch
            if calendar:
                days = np.arange(10 * batch, 10 * batch + 3).astype("timedelta64[D]")
                x = np.datetime64("2019-12-01") + days
            elif dim > 1:
                x = torch.stack([x, x.sin()], -1)
            with warnings.catch_warnings(action="ignore", category=LostInformationWarning):
                gp.update(x, [0.0, 1.0, 1.0])
        return gp

    return draw(
        built(
            online_gp,
            kernel=kernel(dim),
            likelihood=LIKELIHOODS,
            basis=TIME_BASES if dim == 1 else POINT_BASES,
            dtype=DTYPES,
            rebase=st.sampled_from(["task", "grow:1.05"]) if dim == 1 else st.just("task"),
            batches=st.integers(least, 2),
        )
    )


KINDS = {
    "numbers": (models(), times(2.0)),
    "calendar": (models(calendar=True), times(calendar=True)),
    "points": (models(2), tensors("n 2", dtype=DOUBLE)),
}
UPDATE = dict(
    y=targets(),
    mask=st.none() | bools("n"),
    missing=st.just("raise"),
    sort=st.just(False),
    t_end=st.none(),
)
GP = st.shared(models(), key="model")


@functools.wraps(ohsvgp.forecast)
def forecast(self, t, **options):
    """A million steps take more memory than there is; ten go as far as any."""
    with warnings.catch_warnings(action="ignore", category=ohsvgp.ExtrapolationWarning):
        law = ohsvgp.forecast(self, 10 if type(t) is int and t > 10 else t, **options)
    return law.quantile([0.05, 0.5]), law.sample(2)


def model_targets():
    for model, t in KINDS.values():
        yield Target(OnlineGP.update, dict(self=model, t=t, **UPDATE))
        yield Target(
            OnlineGP.fit_hyperparameters,
            dict(self=model, t=t, y=UPDATE["y"], mask=UPDATE["mask"], steps=st.just(2)),
        )
        yield Target(OnlineGP.energy, dict(self=model, t=t, y=UPDATE["y"]))
        yield Target(OnlineGP.read, dict(self=model, t=t, y=UPDATE["y"]))
        yield Target(
            OnlineGP.predict,
            dict(self=model, t=t, full_cov=st.booleans(), include_noise=st.just(False)),
        )
        yield Target(
            OnlineGP.predict,
            dict(self=model, t=t, full_cov=st.just(False), include_noise=st.just(True)),
        )
        yield Target(OnlineGP.log_prob, dict(self=model, t=t, y=UPDATE["y"]))
        yield Target(OnlineGP.inputs, dict(self=model, t=t))
        yield Target(
            OnlineGP.sample, dict(self=model, t=t, num_samples=COUNTS, generator=GENERATORS)
        )
        yield Target(forecast, dict(self=model, t=t, step=st.none()))
    yield Target(forecast, dict(self=models(), t=COUNTS, step=st.none() | SCALES))
    yield Target(OnlineGP.partial_fit, dict(self=models(), t=times(2.0), **UPDATE))
    yield Target(OnlineGP.updated, dict(self=models(), t=times(2.0), y=UPDATE["y"]))
    yield Target(OnlineGP.rebase, dict(self=models(), t_end=SCALES))
    yield Target(OnlineGP.rebase, dict(self=models(calendar=True), t_end=times(0.0, True, "1")))
    yield Target(OnlineGP.reconstruct, dict(self=models(least=1), t=times(0.5)))
    yield Target(
        OnlineGP.load_state_dict,
        dict(self=GP.map(copy.deepcopy), tensors=GP.map(lambda gp: gp.state_dict())),
    )


POINT_GP = Target(
    OnlineGP,
    dict(
        kernel=kernel(2),
        likelihood=LIKELIHOODS,
        basis=POINT_BASES,
        mean=st.sampled_from([None, means.Trend(), means.Level() + means.Seasonal(2.0, 1)]),
        inference=st.just("natural") | ADAM,
        dtype=DTYPES,
    ),
)

# -- The autoencoder --------------------------------------------------------------------------

NETWORKS = dict(encoder=built(vae.MLPEncoder, channels=3, latents=2, hidden=4))
NETWORKS["decoder"] = built(vae.MLPDecoder, latents=2, channels=3, hidden=4)
VAE_BASES = st.one_of(
    built(bases.LegS, num_inducing=MEMBERS),
    built(bases.UniformGrid, num_inducing=MEMBERS),
    built(vae.SharedSet, basis=POINTS),
    POINTS,
)
VAE_ARGUMENTS = dict(
    **NETWORKS,
    kernel=st.sampled_from([(), (2,)]).flatmap(lambda shape: kernel(batch_shape=shape)),
    basis=VAE_BASES,
    num_latents=st.just(2),
    noise=SCALES,
    carry=st.booleans(),
    consolidation=st.sampled_from([0.0, 1.0]),
    t0=st.none(),
    time_unit=st.sampled_from(["D", "h"]),
    dtype=DTYPES,
    seed=st.integers(0, 9),
)
CHANNELS = tensors("n 3", dtype=DOUBLE)


def online_vae(batches, **arguments):
    model = OnlineSVGPVAE(**arguments)
    for batch in range(batches):
        x = torch.tensor([0.0, 0.5, 1.0], dtype=DOUBLE) + batch
        model.fit_task(x, torch.stack([x.sin(), x.cos(), x], -1), epochs=1)
    return model


VAES = built(online_vae, batches=st.integers(0, 1), **VAE_ARGUMENTS)


@functools.wraps(OnlineSVGPVAE.fit_task)
def fit_task(self, t, y, *, epochs, **options):
    """A million epochs do nothing that two do not."""
    return OnlineSVGPVAE.fit_task(self, t, y, epochs=2 if epochs == 10**6 else epochs, **options)


FIT_TASK = Target(
    fit_task,
    dict(
        self=VAES,
        t=times(2.0),
        y=CHANNELS,
        epochs=st.just(1),
        batch_size=st.none() | COUNTS,
        learning_rate=st.just(0.01),
        num_samples=COUNTS,
        learn_kernel=st.just(False),
        learn_inducing=st.just(False),
    ),
)

# -- Exact processes --------------------------------------------------------------------------


@st.composite
def exact_models(draw):
    """Exact processes that have seen one batch."""

    def exact_gp(kernel, noise):
        gp = ohsvgp.ExactGP(kernel, ohsvgp.Gaussian(noise))
        x = torch.arange(6, dtype=DOUBLE).reshape(3, 2)
        gp.update(x, x.sin().sum(-1))
        return gp

    return draw(built(exact_gp, kernel=kernel(2), noise=SCALES))


ENTRIES = {
    "*": dict(
        kernel=kernel(),
        likelihood=LIKELIHOODS,
        basis=TIME_BASES,
        num_inducing=MEMBERS,
        learn=st.none() | ADAM,
    ),
    "VariationalFourier": dict(num_inducing=st.just(3), start=st.just(0.0), end=SCALES),
    "RecurrentFeatures": dict(basis=HIPPO),
    "SharedSet": dict(basis=POINTS),
    "OnlineGP": dict(inference=st.just("natural") | ADAM, t0=st.none()),
    "Refit": dict(when=st.sampled_from(["first", "every:2", "every:0", "drift", "x"])),
    "Regressors": dict(function=st.just(torch.sin)),
    "OnlineSVGPVAE": VAE_ARGUMENTS,
    "OnlineSVGPVAE.*": dict(self=VAES, t=times(0.5), y=CHANNELS),
    "ExactGP.*": dict(
        self=exact_models(), t=tensors("n 2", dtype=DOUBLE), y=tensors("n", dtype=DOUBLE)
    ),
    "exact_posterior": dict(kernel=kernel(2).map(lambda module: module.double()), noise=SCALES)
    | {"x": tensors("n 2", dtype=DOUBLE), "x_new": tensors("m 2", dtype=DOUBLE)}
    | {"y": tensors("n", dtype=DOUBLE)},
}

CALLED = "called by OnlineGP and OnlineSVGPVAE, which check"
UNCHECKED = (
    "*.advance *.bind *.prior *.choose *.functions *.inducing *.refine *.check_targets "
    "*.derivatives *.expectations *.limits *.log_prob *.start *.predictive_* *.arrival "
    "Bernoulli.quantile Gaussian.quantile StudentT.quantile Bernoulli.sample Gaussian.sample "
    "Poisson.sample NegativeBinomial.sample StudentT.sample *.scaled Refit.due"
)
OF_FIT_TASK = (
    "OnlineSVGPVAE.consolidated OnlineSVGPVAE.prepare OnlineSVGPVAE.task_bound "
    "OnlineSVGPVAE.amortised OnlineSVGPVAE.window Consolidation* diagonal_fisher"
)
NOT_FUZZED = {
    "Advance": "made by OnlineGP",
    "Basis": "abstract; each kind is a target",
    **dict.fromkeys(UNCHECKED.split(), CALLED),
    **dict.fromkeys(OF_FIT_TASK.split(), "a part of OnlineSVGPVAE.fit_task"),
    "*.*tensors": "part of the state, whose loading is fuzzed",
    "*.restore": "part of the state, whose loading is fuzzed",
    "OnlineGP.posterior_coefficients": "takes nothing",
    "OnlineGP.state_dict": "takes nothing",
    "OnlineGP.user_inputs": "takes what inputs returns",
    "Forecast*": "made by forecast; its laws are tested",
    "*.without_learning": "takes nothing",
}
MODULES = (ohsvgp, bases, likelihoods, vae)
INHERITED = (bases.LegS, bases.Cosine, bases.UniformGrid, bases.PivotedCholesky, bases.RandomSubset)
OTHERS = [
    *model_targets(),
    POINT_GP,
    FIT_TASK,
    *(Target(kind, dict(num_inducing=MEMBERS)) for kind in INHERITED),
    Target(transitions.legs_system, dict(M=MEMBERS)),
    Target(transitions.legt_system, dict(M=MEMBERS, window=SCALES)),
    Target(transitions.lagt_system, dict(M=MEMBERS, timescale=SCALES)),
    Target(transitions.fout_system, dict(M=MEMBERS, window=SCALES)),
]
TARGETS = derive(MODULES, NOT_FUZZED, OTHERS, entries=ENTRIES)


class TestFuzz(FuzzSuite):
    modules = MODULES
    targets = TARGETS
    reasons = NOT_FUZZED
