"""Measuring campaigns: workloads alone and in pairs, at every split that may be used."""
