"""Small tasks whose true credit is known, and a model that learns them on a CPU in minutes.

Importing this package imports no torch. Knows no method and no engine.
"""
