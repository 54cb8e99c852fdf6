"""What runs inside an application: its ApplicationMaster with the fleet, and the first program of each container."""
