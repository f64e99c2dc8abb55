"""Demonstrations, comparisons and scores: they start runs and hand the numbers to the laboratory."""
