"""What is not in the paper: designs, solvers, measures of samples, Gaussian images."""
