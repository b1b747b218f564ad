"""StoredRows: quantized rows of all kinds that a quantized matrix stores unchanged."""

from lullm.ops.quantized.grid import GridRows
from lullm.ops.quantized.integer_rows import IntegerRows
from lullm.ops.quantized.narrow import NarrowRows

StoredRows = IntegerRows | GridRows | NarrowRows
