"""Scripts for a machine with a GPU that is at hand for minutes: each ends by itself and writes JSON."""
