"""How far a job is: iterations counted in the job, read from outside."""
