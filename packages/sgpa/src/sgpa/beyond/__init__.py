"""Softmax attention with a deviation, which is not in the papers."""
