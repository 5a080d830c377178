"""The rows of the network suite, one module a question."""
