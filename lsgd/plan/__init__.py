"""What a bigger machine would give: hours, efficiency and what bounds, before any of it is rented.

From the bottom: `allreduce` the cost of one sum, `gradients` what is summed and when it is ready,
`overlap` how much of it the backward pass hides, `step` the whole step; `hardware` has the
constants, `measured` and `paper` the step to start from. `strategy` sets servers beside all-reduce,
by the `pace` that workers keep in virtual time; `arrival` and `target` plan to an accuracy. `kept`
is what --out keeps.
"""
