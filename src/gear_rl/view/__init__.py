"""A record file in, a picture out. Knows no method, no model and no trainer."""
