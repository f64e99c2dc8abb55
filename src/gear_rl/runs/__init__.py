"""From a configuration to a trainer that runs."""
