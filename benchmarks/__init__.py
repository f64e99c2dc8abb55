"""What things cost: each measured beside its limit and its peers, in one process. Not a part of the package.

``python -m benchmarks --help``, in the repository; docs/benchmarks.md has the results.
"""
