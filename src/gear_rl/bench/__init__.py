"""What things cost: each measured beside its limit and its peers, in one process. Trains nothing."""
