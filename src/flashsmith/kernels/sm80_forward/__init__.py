"""The forward kernel on mma.sync, from sm_80 on."""
