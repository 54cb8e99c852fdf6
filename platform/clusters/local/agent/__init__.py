"""The node agent: admits pods, keeps their state in a journal, and answers clients.

Processes of pods are started and limited in `processes`.
"""
