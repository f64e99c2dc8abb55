"""What made the package's data: in the repository, not in the wheel."""
