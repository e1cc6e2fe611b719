"""flashsmith inside other people's models."""
