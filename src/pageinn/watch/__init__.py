"""A running server's cache, seen through its metrics endpoint: pageinn, vLLM, SGLang and llama-server.

`exposition` reads the text, `engines` knows the engines' names for one `sample`, `windows` cuts samples in windows,
`alarms` are pure functions over samples, `watcher` scrapes and remembers, `view` draws, `checkup` answers the seven
questions, `rules` and `dashboard` say the same to Prometheus and Grafana.
"""
