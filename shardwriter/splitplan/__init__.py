"""How training will split a set of shards: samples and steps of every rank, from numbers alone."""
