"""What a run is to all that know of it: its folder, its task, and what its configuration builds."""
