"""What makes a run of verl one with token credit: settings, checks, and the plugin that verl loads."""
