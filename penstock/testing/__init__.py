"""What penstock promises, as functions: `feeds`, `losses` and `living` of feeds, `sinks`, `stores`.
The suite, authors of plug-ins and `penstock prove` call the same ones."""
