"""Running kernels: the Device protocol, CUDA and the emulator behind it, launch plans, forward."""
