"""Where credit lands and whether it helps: localisation, statistics over seeds, reports. Trains nothing."""
