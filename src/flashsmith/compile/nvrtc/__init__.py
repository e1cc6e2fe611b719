"""The compiler: which library it is, and one unit compiled."""
