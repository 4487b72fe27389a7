"""The operator's commands for Corsage on devices, shut by default.

`corsage deploy` makes keys, certificates, the signed app and a folder for each machine;
`corsage gate` is the only door that devices see; `corsage register` lets the known devices in.
"""
