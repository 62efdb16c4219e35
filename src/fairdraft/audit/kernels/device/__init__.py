"""`fairdraft audit kernels --device`: the same rows through the kernels of a device, and more."""
