"""EventGuard (seed 002): its one experiment that is told, Fig. 3."""
