"""What a master knows of its job in the words of `platform.scaling`, and its own look at the job's memory.

The one room of a master that knows `platform.scaling`. Rounds of scaling read the same facts. No decision here: that is
`platform.scaling`; nothing here changes the job's state: a plan goes through `ChangeShape` like everybody's.
"""
