"""The step loop: plan, run, apply; and how its events leave."""
