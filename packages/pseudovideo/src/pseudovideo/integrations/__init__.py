"""Bridges to other libraries: diffusers, and improved DDPM's published weights."""
