"""Doubles for the connector's tests: a depot in this process, and the part of vLLM that the connector sees."""
