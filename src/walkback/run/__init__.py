"""Wires training, measuring and storing together: one run, or many in single-thread processes."""
