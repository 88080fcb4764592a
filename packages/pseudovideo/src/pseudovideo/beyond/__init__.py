"""Additions to the paper: measures of samples, Gaussian images."""
