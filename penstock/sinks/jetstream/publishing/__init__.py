"""How messages get into a stream: `atomic` behind a fence, `individual` by their ids."""
