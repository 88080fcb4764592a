"""Updates of the posterior for likelihoods that are not Gaussian."""
