"""Command lines and environments of each role, for every target: derived from the deployment, and nowhere else."""
