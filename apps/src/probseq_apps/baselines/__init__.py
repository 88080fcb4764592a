"""Baselines that are not an attention module: what is done with a trained model's predictions."""
