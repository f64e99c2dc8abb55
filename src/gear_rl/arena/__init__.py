"""The small world: a task whose truth about credit is known, and a model that learns it on a CPU in minutes.

Importing this package imports no torch. Knows no method and no engine.
"""
