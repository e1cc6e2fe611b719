"""Asynchronous copies and the barriers that count them."""
