"""One plan on one device: its batch, the input at fixed addresses, recorded decodes, block moves, the run itself.

`staging` brings all numbers of a batch to the device in one copy; `graphs` records and replays; `relay` hands rows from
one stage of a pipeline to the next.
"""
