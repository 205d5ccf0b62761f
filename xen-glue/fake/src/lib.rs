//! An in-process hypervisor with Xen's page layouts and rules, for tests.
