"""Names of JSON types, and what people write in their place: one table for the schema's reader and the parser."""

from __future__ import annotations

__all__ = ["TYPES", "TYPE_NAMES"]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

#: Type names that tools use beside JSON Schema's own, in lower case. Any other name allows every type.
TYPE_NAMES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in TYPES},
    "number": ("number", "integer"),
    **dict.fromkeys(("str", "text", "char", "varchar", "uuid", "uri", "url", "date", "datetime"), ("string",)),
    **dict.fromkeys(("time", "timestamp", "file", "path", "bytes", "binary", "base64", "email"), ("string",)),
    **dict.fromkeys(("int", "int32", "int64", "uint", "long", "short", "bigint"), ("integer",)),
    **dict.fromkeys(("float", "float32", "float64", "double", "decimal", "num"), ("number", "integer")),
    "bool": ("boolean",),
    **dict.fromkeys(("none", "nil"), ("null",)),
    **dict.fromkeys(("dict", "map", "mapping", "struct", "record"), ("object",)),
    **dict.fromkeys(("list", "tuple", "set", "sequence"), ("array",)),
}
