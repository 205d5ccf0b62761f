//! A small driver that probes and submits the way i915 does, for tests and the demo.
