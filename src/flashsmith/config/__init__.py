"""The configuration space: what one kernel is, as text, as C++ and as named sets."""
