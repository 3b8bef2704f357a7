"""Renders a launch, then submits it. One module for each place that processes can be started in."""
