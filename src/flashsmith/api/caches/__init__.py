"""Query rows on a cache: flash-attn's call of servers, and the rotation of what is appended."""
