"""What is not in the paper: means, several outputs, forecasts, a monitor, priors by name."""
