"""The internals of torch and DeepSpeed that m5ws uses, one function a fact; no other module of m5ws accesses them.

`facts` has the check. A session checks the facts that its trainer uses before its first step. By subject: `tensors`,
`modules`, `schedules` and `ddp` are torch's; `engine`, `zero`, `zero_files` and `cpu_adam` are DeepSpeed's.
"""
