"""The columns of a run's curve and of its groups' noise, and how these lie in a record."""

import pyarrow as pa
import pyarrow.parquet as pq

CURVE_COLUMNS = {
    "step": "int64",
    "examples": "int64",
    "seconds": "float64",
    "loss": "float64",
    "metric": "float64",
    "grad_sq_norm": "float64",
    "trace_cov": "float64",
    "noise_examples": "int64",
    "noise_steps": "int64",
    "b_simple": "float64",
    "b_simple_low": "float64",
    "b_simple_high": "float64",
    "grad_hess_grad": "float64",
    "trace_hess_cov": "float64",
}

GROUP_COLUMNS = {
    "step": "int64",
    "group": "string",
    "grad_sq_norm": "float64",
    "trace_cov": "float64",
    "noise_examples": "int64",
    "noise_steps": "int64",
}
CURVE_SCHEMA, GROUPS_SCHEMA = (
    pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    for columns in (CURVE_COLUMNS, GROUP_COLUMNS)
)

# How a curve of some dozen rows is written, to be read in two thirds of the time, with a thousand others.
PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False}


def read_table(content: bytes, schema: pa.Schema) -> pa.Table:
    """Of `schema`, and with nothing missing among its whole numbers; else an exception."""
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    table = table if table.schema.equals(schema) else table.cast(schema)
    if any(column.null_count for column in table.columns if pa.types.is_integer(column.type)):
        raise ValueError("whole numbers are missing")
    return table
