"""Converts a master's measurements to the types of `platform.scaling`, and forecasts the job's memory between rounds.

Only this room of a master depends on `platform.scaling`. Rounds of scaling use the same facts. Decisions are made in
`platform.scaling`; this room does not change the job's state: a plan is a `ChangeShape` request, like any other.
"""
