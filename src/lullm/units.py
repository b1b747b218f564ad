"""Units: bytes for people, and the small integer arithmetic that block bookkeeping needs."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b for non-negative `a` and positive `b`."""
    return -(-a // b)


def next_power_of_2(a: int) -> int:
    """The smallest power of two that is not below `a`, which is positive."""
    return 1 << (a - 1).bit_length()


def round_up(a: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `a`."""
    return cdiv(a, multiple) * multiple


def format_bytes(num_bytes: int) -> str:
    """`1536` -> `'1.5 KiB'`."""
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
