"""Attention inside JAX's transformations: a call that XLA makes, and its gradient."""
