"""Programs inside a YARN application: the ApplicationMaster with the fleet, and the first program of each container."""
