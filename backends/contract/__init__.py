"""The types that both sides of every process boundary use: front ends, host and workers.

`requests`, `messages` and `sampling` hold what is asked, `events` what is answered, `models` which
model and how, `loaded` what is loaded, `backend` what a front end holds. `wire` carries them
between processes; the others need the standard library only.

A stream of events for one `Request` is:
`Started`, then `Progress`* during prefill, then `Token`* and `ToolCallPart`* (with `n` over 1 a
`ChoiceFinished` for each choice), and exactly one `Finished` or `Failed`.

Nothing is imported here: making all these classes takes time, and the first paint of the terminal
app needs few of them (`tests/test_imports.py`).
"""
