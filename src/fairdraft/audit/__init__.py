"""Decides, with stated error rates, whether a decoder samples from its target."""
