//! A kernel's modules: which files one needs, in the order to load them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// `modules.dep` of one kernel and where its files are.
pub struct ModuleTree {
    root: PathBuf,
    /// Module file, relative to the root → files it needs, nearest first.
    needs: BTreeMap<String, Vec<String>>,
}

impl ModuleTree {
    /// Reads `root/modules.dep`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        let path = root.join("modules.dep");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self {
            root: root.to_owned(),
            needs: parse(&text),
        })
    }

    /// Files to load for `names`, every file after all that it needs.
    ///
    /// # Errors
    /// For a module that the kernel does not have.
    pub fn load_order(&self, names: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut order: Vec<String> = Vec::new();
        for name in names {
            let (file, needs) = self
                .needs
                .iter()
                .find(|(file, _)| module_name(file) == name.replace('-', "_"))
                .with_context(|| {
                    format!("kernel module {name} is not in {}", self.root.display())
                })?;
            // depmod lists all needs, indirect ones too, in the reverse of
            // the order they have to be loaded in.
            for need in needs.iter().rev().chain([file]) {
                if !order.contains(need) {
                    order.push(need.clone());
                }
            }
        }
        Ok(order)
    }

    /// Where `file`, as named by `load_order`, is.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Copies the files of `names` and the dependency list to `to`.
    ///
    /// # Errors
    /// For a module that the kernel does not have, or a file that cannot be
    /// copied.
    pub fn copy(&self, names: &[&str], to: &Path) -> anyhow::Result<()> {
        for file in self.load_order(names)? {
            let target = to.join(&file);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(self.path(&file), &target)
                .with_context(|| format!("cannot copy kernel module {file}"))?;
        }
        fs::copy(self.root.join("modules.dep"), to.join("modules.dep"))?;
        Ok(())
    }
}

fn parse(text: &str) -> BTreeMap<String, Vec<String>> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| {
            (
                file.to_owned(),
                needs.split_whitespace().map(str::to_owned).collect(),
            )
        })
        .collect()
}

fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_loaded_before_what_needs_them_and_once() {
        let tree = ModuleTree {
            root: PathBuf::from("/none"),
            needs: parse(
                "k/ahci.ko: k/libahci.ko k/libata.ko k/scsi_mod.ko\n\
                 k/sd_mod.ko: k/crc-x.ko k/scsi_mod.ko\n\
                 k/xen-blkfront.ko:\n",
            ),
        };
        assert_eq!(
            tree.load_order(&["ahci", "sd_mod", "xen_blkfront"])
                .unwrap(),
            [
                "k/scsi_mod.ko",
                "k/libata.ko",
                "k/libahci.ko",
                "k/ahci.ko",
                "k/crc-x.ko",
                "k/sd_mod.ko",
                "k/xen-blkfront.ko"
            ]
        );
        let error = tree.load_order(&["nvme"]).unwrap_err().to_string();
        assert_eq!(error, "kernel module nvme is not in /none");
    }
}
