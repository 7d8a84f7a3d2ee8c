"""What a process needs apart from its data: plug-ins, sockets between processes, child processes,
back-off, closing, histograms.
"""
