"""Where bytes are: local disk and object stores, range reads, atomic publishing."""
