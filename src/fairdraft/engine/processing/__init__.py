"""How a request's processors reach every row of a round, on the target's side and the draft's."""
