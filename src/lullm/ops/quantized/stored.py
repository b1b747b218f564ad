"""StoredRows: rows that are quantized already, of the kinds that a quantized matrix stores as they are."""

from lullm.ops.quantized.grid import GridRows
from lullm.ops.quantized.integer_rows import IntegerRows
from lullm.ops.quantized.narrow import NarrowRows

StoredRows = IntegerRows | GridRows | NarrowRows
