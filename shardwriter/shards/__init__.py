"""Shard files: one that grows, sets of them, and any record of theirs."""
