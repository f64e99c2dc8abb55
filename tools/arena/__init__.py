"""How the arena's checkpoints were made, and what is claimed of them."""
