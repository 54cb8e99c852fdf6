"""Plans of one job: the space, its Pareto front, costs and gains of plans (DLRover-RM §4.2 and §4.3)."""
