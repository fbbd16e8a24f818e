"""From items to records: which items, in which order, and what becomes of each."""
