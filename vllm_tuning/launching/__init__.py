"""Plan the launches, make them, verify the answer."""
