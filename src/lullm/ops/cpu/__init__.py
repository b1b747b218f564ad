"""Native ops for CPUs: C++ kernels per instruction set (`csrc/`), loaded through ctypes; absent where not built."""
