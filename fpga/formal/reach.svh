// The last lines of every proof: a state that must be reachable. The claim that it is not is refuted from reset.
`ifdef REACH
(* keep *) wire f_reached = `REACH;
`endif
