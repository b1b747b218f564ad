"""Native ops for CPUs: C++ kernels per instruction set (`csrc/`), loaded through ctypes; absent where not built.

`library` finds and checks them. `recording` writes calls down and replays all of a step in one. `memory_group` adds
over memory that workers of one host share. `digest` copies with a checksum. What an instruction set is: `csrc/simd/`.
"""
