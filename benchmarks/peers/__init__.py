"""pageinn beside other CPU servers: the same requests, one engine after another."""
