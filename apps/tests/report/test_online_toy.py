"""Figure 4.1: the law of the coefficients on any window, and what the panels show."""

import numpy as np
import torch

from probseq_apps.report.online_toy import coefficient_path, toy_figure, toy_models


def test_the_path_ends_at_the_law_of_the_coefficients():
    _, model = toy_models()
    law = model.posterior_coefficients()
    path = coefficient_path(model, torch.tensor([model.state.length], dtype=torch.float64))
    torch.testing.assert_close(path.mean[0], law.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(path.variance[0], law.variance, rtol=0, atol=1e-6)


def test_the_path_holds_projections_of_the_posterior_on_shorter_windows():
    model, _ = toy_models()
    end = 2.5
    nodes, weights = np.polynomial.legendre.leggauss(60)
    x = torch.from_numpy(end * (1 + nodes) / 2)
    posterior = model.predict(x, full_cov=True)
    polynomials = np.polynomial.legendre.legvander(nodes, 11).T
    phi = torch.from_numpy(np.sqrt(2 * np.arange(12) + 1)[:, None] * polynomials * weights / 2)
    path = coefficient_path(model, torch.tensor([end], dtype=torch.float64))
    torch.testing.assert_close(path.mean[0], phi @ posterior.mean, rtol=0, atol=1e-7)
    variance = (phi @ posterior.covariance @ phi.T).diagonal()
    torch.testing.assert_close(path.variance[0], variance, rtol=0, atol=1e-7)


def test_twelve_inducing_variables_show_what_the_exact_process_shows():
    lines = [panel.lines[0].get_ydata() for panel in toy_figure().axes[2:]]
    exact, online, rebuilt = lines
    np.testing.assert_allclose(online, exact, atol=5e-3)
    np.testing.assert_allclose(rebuilt, exact[1:], atol=2e-2)
