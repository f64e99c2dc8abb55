"""Thin adapters to trainers that exist. Each is imported only on request; none knows a method by name."""
