"""Plans of one job: the space, its Pareto front, what each plan costs and brings (DLRover-RM §4.2 and §4.3)."""
