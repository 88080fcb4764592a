"""Gaussian diffusion of images and of pseudo videos (thesis section 5.4)."""
