"""The operator's page at `/`: static files for a browser, and one resource with all that they show."""
