//! Xenstore: small blocking calls, and watches on a connection of their own.

mod permissions;
mod watch;

pub use watch::XenstoreWatch;

use std::io;
use std::sync::{Mutex, PoisonError};

use xenstore_rs::Xs;
use xenstore_rs::unix::XsUnix;

use crate::DomId;

/// Why a xenstore call failed.
#[derive(Debug, thiserror::Error)]
#[error("xenstore {op} {path}: {source}")]
pub struct XenstoreError {
    /// The call.
    pub op: &'static str,
    /// The path, with the value for a write.
    pub path: String,
    /// What came back; xenstored's own error names are in its text.
    pub source: io::Error,
}

impl XenstoreError {
    /// True when there is no such node.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// A connection to xenstored (its socket, else `/dev/xen/xenbus`).
pub struct Xenstore {
    connection: Mutex<XsUnix>,
}

impl Xenstore {
    /// Connects.
    ///
    /// # Errors
    /// When neither the socket nor the node can be opened.
    pub fn open() -> Result<Self, XenstoreError> {
        let connection = XsUnix::new().map_err(|source| XenstoreError {
            op: "open",
            path: String::new(),
            source,
        })?;
        Ok(Self {
            connection: Mutex::new(connection),
        })
    }

    fn call<T>(
        &self,
        op: &'static str,
        path: &str,
        f: impl FnOnce(&XsUnix) -> io::Result<T>,
    ) -> Result<T, XenstoreError> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        f(&connection).map_err(|source| XenstoreError {
            op,
            path: path.to_owned(),
            source,
        })
    }

    /// A node's value.
    ///
    /// # Errors
    /// [`XenstoreError::is_not_found`] when there is none.
    pub fn read(&self, path: &str) -> Result<String, XenstoreError> {
        self.call("read", path, |xs| xs.read(path)).map(Into::into)
    }

    /// A node's value, or `None` when there is none.
    ///
    /// # Errors
    /// Any other failure.
    pub fn read_if_there(&self, path: &str) -> Result<Option<String>, XenstoreError> {
        match self.read(path) {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes a node, making it and its parents if need be.
    ///
    /// # Errors
    /// [`XenstoreError`].
    pub fn write(&self, path: &str, value: &str) -> Result<(), XenstoreError> {
        self.call("write", path, |xs| xs.write(path, value))
    }

    /// Removes a node and all below it.
    ///
    /// # Errors
    /// [`XenstoreError`].
    pub fn rm(&self, path: &str) -> Result<(), XenstoreError> {
        self.call("rm", path, |xs| xs.rm(path))
    }

    /// Makes a node `owner`'s, and only its: it may write it and make children.
    ///
    /// # Errors
    /// [`XenstoreError`].
    pub fn give(&self, path: &str, owner: DomId) -> Result<(), XenstoreError> {
        permissions::give(path, owner)
    }

    /// The names of a node's children.
    ///
    /// # Errors
    /// [`XenstoreError`].
    pub fn directory(&self, path: &str) -> Result<Vec<String>, XenstoreError> {
        let names = self.call("directory", path, |xs| xs.directory(path))?;
        Ok(names.into_iter().map(Into::into).collect())
    }

    /// Watches a path on a new connection.
    ///
    /// # Errors
    /// [`XenstoreError`].
    pub fn watch(path: &str) -> Result<XenstoreWatch, XenstoreError> {
        XenstoreWatch::open(path)
    }
}
