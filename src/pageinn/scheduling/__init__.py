"""Which tokens the next step computes, for whom, and with which blocks. No tensor, no clock, no socket."""
