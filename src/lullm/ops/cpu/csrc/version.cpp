// What this library is: the number of its interface, and the digest of the sources it is made of. Python compares both
// before it calls anything else (`ops/cpu/library.py`).

#include "operation.h"

LULLM_EXPORT int lullm_abi_version() { return 20; }

// By CMake: SHA-256 over the sorted lines "path SHA-256" of all files of this folder.
LULLM_EXPORT const char* lullm_source_digest() { return LULLM_SOURCE_DIGEST; }
