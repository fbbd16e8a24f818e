"""A run on disk: its folder, what a stopped one has left, going on, publishing."""
