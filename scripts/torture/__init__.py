"""Kills writes at random moments, and holds what they come to against unkilled ones."""
