"""How long one waits for a batch."""
