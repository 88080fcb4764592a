"""What is not in the paper: measures of samples, Gaussian images."""
