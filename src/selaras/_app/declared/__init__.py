"""What a program declares, as records: families and tasks, their loaders and lives."""
