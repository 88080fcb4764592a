"""Extensions of the paper: means, forecasts, state-space filters, priors by name."""
