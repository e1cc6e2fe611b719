"""What a cubin holds: machine code, SASS, resources."""
