"""The backward kernels on wgmma and TMA: deterministic unless asked otherwise."""
