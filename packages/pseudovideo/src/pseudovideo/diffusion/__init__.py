"""Gaussian diffusion of images and of pseudo videos."""
