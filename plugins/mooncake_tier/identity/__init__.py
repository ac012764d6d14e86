"""Which deployment a worker's blocks belong to: the fields of its namespace, and the report of them."""
