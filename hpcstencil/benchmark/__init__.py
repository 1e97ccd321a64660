"""Speed in hardware terms: cells per second, effective memory throughput, and its ratio to the copy bandwidth.

T_eff counts the minimum number of bytes that a step must move: each field read once and written once (Räss, Utkin, Duretz,
Omlin & Podladchikov, Geosci. Model Dev. 15 (2022) 5757-5786, eq. (3)). The copy bandwidth is measured in the same run, on all
processes at once, and counts bytes read plus bytes written.
"""
