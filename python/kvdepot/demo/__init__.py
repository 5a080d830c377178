"""The demo: two engines and a depot, a crash in between, and a report. Run it with `python -m kvdepot.demo`."""
