"""How fast it is, compared with others."""
