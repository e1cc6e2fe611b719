"""Flash-attention kernels that are configured, built, verified, tuned and explained from Python."""
