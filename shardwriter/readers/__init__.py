"""Readers: datasets as Python, torch and TensorFlow want them."""
