"""What ctas know of each other, and in which order their writes to global memory come."""
