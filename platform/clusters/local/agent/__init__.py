"""The node agent: it grants room to pods, keeps what it must not forget, and answers clients.

How a pod's process is started and limited lies in `processes`.
"""
