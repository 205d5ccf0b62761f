//! Safe Xen device-model operations, foreign memory, event channels, grants and xenstore.
