"""Servers of object stores and HDFS for tests and for trying things: Azurite, fake-gcs-server, Hadoop's own daemons."""
