"""Feature types: inferred, declared, joined and checked; label counts; values from Examples."""
