"""One thin module per training framework, imported by whoever uses it.

Each does two things: the loader's state goes into the framework's own checkpoints and comes back
without a replayed or a lost batch, and the framework counts as the loader does.
"""
