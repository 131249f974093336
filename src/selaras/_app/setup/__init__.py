"""What a program says of itself: settings, its store's URL, where it lies."""
