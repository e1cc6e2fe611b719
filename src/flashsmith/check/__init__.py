"""Whether an output is right: cases, poison, canaries, tolerance."""
