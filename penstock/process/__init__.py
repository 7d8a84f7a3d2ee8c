"""What a process needs apart from its data: plug-ins, sockets, child processes, back-off."""
