"""Gates: what a report has to come up to, and what an earlier one said."""
