"""The TurboQuant decode kernel on FlyDSL, and the machinery that compiles, runs and checks it.

Nothing is imported here, so that importing the package costs nothing: FlyDSL and torch load with the module
that needs them.
"""
