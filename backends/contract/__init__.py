"""The types that both sides of every process boundary use: front ends, host and workers.

`requests`, `messages` and `sampling` describe requests, `events` the answers, `models` which model
to load and how, `loaded` what is loaded, and `backend` is the interface that a front end uses.
`wire` carries them between processes; the other modules need the standard library only.

The stream of events for one `Request` is:
`Started`, then `Progress`* during prefill, then `Token`* and `ToolCallPart`* (with `n` over 1 a
`ChoiceFinished` for each choice), and exactly one `Finished` or `Failed`.

Nothing is imported here: creating all these classes takes time, and the first paint of the
terminal app needs few of them (`tests/test_imports.py`).
"""
