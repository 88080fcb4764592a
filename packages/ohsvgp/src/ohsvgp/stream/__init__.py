"""Inputs of users: stamps, windows and batches, checked before they are used."""
