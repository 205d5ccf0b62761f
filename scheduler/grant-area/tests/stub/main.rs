//! A stub domain and dom0 on a simulated hypervisor.

mod hostile;
mod life;
mod world;
