"""Writing a dataset: options, job, encoding, engines, the run directory, publishing."""
