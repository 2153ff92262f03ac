"""Hypothesis settings for all tests."""

from hypothesis import HealthCheck, settings

# On a busy machine any example may take longer than Hypothesis expects.
settings.register_profile("tpux", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tpux")
