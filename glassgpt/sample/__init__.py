"""Sampling from a trained model: `glass sample`."""
