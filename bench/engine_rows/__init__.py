"""Rows of the engine suite, one file for rows that share their engines. bench/engine.py has their order."""
