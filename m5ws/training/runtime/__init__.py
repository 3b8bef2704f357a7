"""The rank's own run: context, isolation, collectives, signals, facts."""
