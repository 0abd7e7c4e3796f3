"""Records, statistics and plots of runs, whether clients measured them or a cluster simulated them.

Whoever ran something fills the records; what the numbers mean is decided here, once for all.
"""
