"""Datasets as TFDS and timm find them: names, features.json and the folder of splits."""
