"""The levers one after the other, measured on the live engine within one number of cache bytes."""
