"""What runs: each job names its input range, and running it again changes nothing else."""
