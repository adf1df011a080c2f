"""The real scheduler and memory manager under a virtual clock, with a cost model in place of kernels."""
