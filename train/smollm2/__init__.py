"""Heads for SmolLM2-135M-Instruct."""
