"""The credit step: one batch of rollouts in, credit for each token out. Knows no trainer and no method."""
