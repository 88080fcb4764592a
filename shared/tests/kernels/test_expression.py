"""Kernels written as text: equal to those made in Python, and each mistake is shown its place."""

import pytest
import torch

from probseq.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Periodic,
    RationalQuadratic,
    Walk,
    White,
    parse_kernel,
)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("rbf", RBF(1)),
        (" matern12 ( 3.5 ) ", Matern12(1, lengthscale=double(3.5))),
        ("rbf(.3, 2)", RBF(1, lengthscale=double(0.3), outputscale=double(2))),
        ("rbf(outputscale=2)", RBF(1, outputscale=double(2))),
        ("2.5*rbf", RBF(1, outputscale=double(2.5))),
        ("2*rbf*3", RBF(1, outputscale=double(6))),
        (
            "periodic(365.25, .8)*rbf(1e3) + 0.5*matern32(7)",
            Periodic(1, period=double(365.25), lengthscale=double(0.8)).double()
            * RBF(1, lengthscale=double(1e3))
            + Matern32(1, lengthscale=double(7), outputscale=double(0.5)),
        ),
        (
            "(rbf + linear)*(constant(2) + white)",
            (RBF(1) + Linear(1)) * (2.0 * Constant(1).double() + White(1)),
        ),
        (
            "rational_quadratic(2, .7)",
            RationalQuadratic(1, lengthscale=double(2.0), alpha=double(0.7)),
        ),
        ("walk(2, .5)", Walk(step=double(2.0), outputscale=double(0.5))),
    ],
)
def test_text_is_the_kernel_that_it_names(text, made):
    x = torch.linspace(-2, 2, 7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(parse_kernel(text)(x, x), made.double()(x, x), rtol=1e-12, atol=0)


def test_scales_that_are_not_given_are_those_of_the_caller():
    kernel = parse_kernel("periodic(7)*rbf + matern32(2)", lengthscale=30.0, outputscale=4.0)
    first, matern = kernel.kernels
    periodic, rbf = first.kernels
    assert periodic.lengthscale.item() == 1
    assert rbf.lengthscale.item() == pytest.approx(30, rel=1e-12)
    assert periodic.outputscale.item() == pytest.approx(4, rel=1e-12)
    assert rbf.outputscale.item() == 1
    assert matern.outputscale.item() == pytest.approx(4, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("3*rbf*periodic", 1),
        ("rbf*(periodic)", 1),
        ("rbf*(2*periodic)", 1),
        ("(2*rbf)*(3*periodic)", 1),
        ("rbf*(periodic + linear)", 2),
        ("(periodic + linear)*rbf", 2),
        ("rbf*(periodic*(linear + white)*rbf + constant)", 3),
    ],
)
def test_as_many_variances_of_a_product_are_learned_as_the_evidence_knows(text, count):
    kernel = parse_kernel(text, outputscale=4.0)
    learned = [
        parameter
        for name, parameter in kernel.named_parameters()
        if parameter.requires_grad and name.endswith("outputscale")
    ]
    assert len(learned) == count
    # No direction of them leaves the kernel as it is.
    x = torch.linspace(0.1, 2, 7, dtype=torch.float64)[:, None]
    entries = kernel(x, x).flatten()
    J = [torch.stack(torch.autograd.grad(k, learned, retain_graph=True)) for k in entries]
    assert torch.linalg.matrix_rank(torch.stack(J)) == count


def test_brackets_change_no_scale():
    x = torch.zeros(1, 1, dtype=torch.float64)
    for text, variance in (("rbf*(matern12)", 4), ("(rbf)*((matern12*rbf))", 4), ("(rbf)", 4)):
        found = parse_kernel(text, outputscale=4.0).diag(x).item()
        assert found == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("periodc(3)", "'periodc' at position 1: did you mean periodic?"),
        ("rbf + rbf(lengthscal=3)", "'lengthscal=3' at position 11: did you mean lengthscale?"),
        ("rbf - matern32", "'rbf - matern32' at position 1"),
        ("rbf(", "must be an expression: .* never closed"),
        ("rbf)", "unmatched"),
        (" ", "must have 1 to 1000 characters, got 0"),
        ("3", "must have a kernel: .* got '3'"),
        ("rbf*", "must be an expression: invalid syntax"),
        ("rbf(0)", "a number above 0, got '0' at position 5"),
        ("rbf(1e999)", "a number above 0"),
        ("rbf(1, 2, 3)", "at most 2 arguments of rbf"),
        ("rbf(1, lengthscale=2)", "lengthscale of rbf only once"),
        ("rbf(1 2)", "must be an expression: .* comma"),
        ("rational_quadratic(outputscale=2, 3)", "positional argument follows"),
        ("(" * 900 + "rbf", "too many nested parentheses"),
        ("+".join(["rbf"] * 300), "1 to 1000 characters, got 1199"),
        ("__import__('os').system('true')", 'brackets, got "__import__.* at position 1'),
        ("rbf(outputscale=2, outputscale=2)", "outputscale of rbf only once|repeated"),
        ("rbf(**rbf)", r"an argument of rbf"),
        ("rbf(True)", "a number above 0, got 'True'"),
        ("rbf[0]", r"brackets, got 'rbf\[0\]'"),
        ("rbf(lengthscale=rbf)", "a number above 0, got 'rbf'"),
    ],
)
def test_a_mistake_is_shown_its_place(text, message):
    with pytest.raises(ValueError, match=message):
        parse_kernel(text)
