"""Datasets made of datasets: another number of shards, several joined, one with more items."""
