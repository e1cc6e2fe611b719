"""The list of q tiles of sequences that have lengths of their own: a launch before the others."""
