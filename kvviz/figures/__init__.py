"""Tables and figures of a comparison, one file a view: a table goes in, a Plotly figure comes out.

Everything here works on a `Comparison` alone, with numpy and plotly: no model, no torch, no page.
Colours are written as role names ("role:kept"); whoever shows a figure resolves them (`palette`).
"""
