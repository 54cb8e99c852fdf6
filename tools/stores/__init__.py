"""Servers of object stores and HDFS: Azurite, fake-gcs-server, Versity's S3 gateway, Hadoop's own daemons."""
