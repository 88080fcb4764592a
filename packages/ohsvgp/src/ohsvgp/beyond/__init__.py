"""Extensions of the paper: means, forecasts, a monitor, priors by name."""
