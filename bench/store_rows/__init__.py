"""The rows of the store suite, one module a question: reads, writes, layer order, the pool."""
