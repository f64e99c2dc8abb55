"""How the arena's checkpoints were made, and checks of their promises."""
