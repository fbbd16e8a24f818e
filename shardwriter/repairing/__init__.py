"""Repair: what of a damaged dataset can be brought back, and how it comes to lie in a new place."""
