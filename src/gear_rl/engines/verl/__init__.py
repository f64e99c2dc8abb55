"""verl as an engine: the credit step on the driver, its forward passes in the actor's workers."""
