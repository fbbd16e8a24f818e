"""Image files: headers, making them anew, and what follows for the rest of an item."""
