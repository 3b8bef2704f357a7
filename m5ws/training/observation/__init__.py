"""The training of a script that does not use m5ws.session, as torch shows it: steps, values, states."""
