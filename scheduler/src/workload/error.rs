//! Why an element of an execlist cannot run.

use vgpu_ring::FaultReason;

use super::ImageError;
use crate::audit::AuditError;
use crate::dma::OutOfPages;
use crate::ggtt::NotMapped;
use crate::ppgtt::ShadowError;
use crate::scan::{Fault, Finding};
use crate::windows::NoRoom;

/// Why an element cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The descriptor is not one a guest of this generation uses.
    #[error("context descriptor {0:#x}: allowed are valid ones of 48-bit contexts")]
    Descriptor(u64),
    /// The register page makes no sense.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A page the context needs is not there.
    #[error(transparent)]
    NotMapped(#[from] NotMapped),
    /// The audit.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A batch without privilege.
    #[error(transparent)]
    Scan(#[from] Finding),
    /// The page tables.
    #[error(transparent)]
    Shadow(#[from] ShadowError),
    /// The global table is full.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// No own page is left.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
}

impl PrepareError {
    /// What the device model is told.
    #[must_use]
    pub const fn reason(&self) -> FaultReason {
        match self {
            Self::Descriptor(_) | Self::Image(_) => FaultReason::Descriptor,
            Self::NotMapped(_)
            | Self::Audit(AuditError::NotMapped(_))
            | Self::Shadow(ShadowError::Away { .. }) => FaultReason::Unmapped,
            Self::Audit(AuditError::Unknown { .. })
            | Self::Scan(Finding {
                fault: Fault::Unknown,
                ..
            }) => FaultReason::Instruction,
            Self::Audit(AuditError::Refused(_)) | Self::Scan(_) => FaultReason::Refused,
            Self::Audit(AuditError::Exhausted(_))
            | Self::Shadow(_)
            | Self::NoRoom(_)
            | Self::OutOfPages(_) => FaultReason::Exhausted,
        }
    }

    /// Whether it may be different when nothing is at the GPU.
    #[must_use]
    pub const fn too_many_tables(&self) -> bool {
        matches!(self, Self::Shadow(ShadowError::TooMany { .. }))
    }

    /// The header of the command concerned, or 0.
    #[must_use]
    pub const fn header(&self) -> u32 {
        match self {
            Self::Audit(e) => e.header(),
            Self::Scan(f) => f.header,
            _ => 0,
        }
    }
}
