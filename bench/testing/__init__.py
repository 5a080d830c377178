"""Fakes for the tests of the harness."""
