"""The forward kernel on wgmma and TMA, for sm_90a."""
