"""flash_attention and its drop-ins: arrays in, arrays out."""
