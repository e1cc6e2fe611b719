"""A CUDA GPU behind the Device protocol, through the driver library."""
