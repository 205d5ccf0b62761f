use std::path::PathBuf;

use super::*;

/// A program of one header: of a dynamic loader's path, or of nothing.
fn program(loader: Option<&str>) -> Vec<u8> {
    let mut bytes = vec![0; 0x40 + 0x38];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[0x20] = 0x40;
    bytes[0x36] = 0x38;
    bytes[0x38] = 1;
    bytes[0x40] = 1;
    if let Some(path) = loader {
        bytes[0x40] = 3;
        bytes[0x48] = 0x78;
        bytes[0x60] = u8::try_from(path.len() + 1).unwrap();
        bytes.extend(path.as_bytes());
        bytes.push(0);
    }
    bytes
}

struct Host {
    dir: PathBuf,
}

impl Host {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("stub-image-{name}-{}", std::process::id()));
        let xen = dir.join("modules/kernel/drivers/xen");
        fs::create_dir_all(&xen).unwrap();
        let mut list = String::new();
        for module in MODULES {
            let file = format!("kernel/drivers/xen/{module}.ko");
            fs::write(dir.join("modules").join(&file), module).unwrap();
            list.push_str(&format!("{file}:\n"));
        }
        fs::write(dir.join("modules/modules.dep"), list).unwrap();
        fs::write(dir.join("kernel"), "kernel").unwrap();
        fs::write(dir.join("dm"), program(None)).unwrap();
        Self { dir }
    }

    fn build(&self, out: &str) -> anyhow::Result<Sizes> {
        let parts = Parts {
            kernel: &self.dir.join("kernel"),
            modules: &self.dir.join("modules"),
            dm: &self.dir.join("dm"),
        };
        build(parts, &self.dir.join(out))
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.dir.join(file)).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn the_same_parts_give_the_same_bytes() {
    let host = Host::new("same");
    let sizes = host.build("a").unwrap();
    assert_eq!(host.build("b").unwrap(), sizes);
    assert_eq!(host.read("a/initramfs.gz"), host.read("b/initramfs.gz"));
    assert_eq!(host.read("a/vmlinuz"), b"kernel");
    assert_eq!(sizes.kernel, 6);
    // Anew in its place, and nothing is left beside it.
    host.build("a").unwrap();
    assert_eq!(fs::read_dir(host.dir.join("a")).unwrap().count(), 2);
    fs::write(host.dir.join("kernel"), "kernel 2").unwrap();
    host.build("a").unwrap();
    assert_eq!(host.read("a/vmlinuz"), b"kernel 2");
}

#[test]
fn the_device_model_is_init_and_the_modules_have_an_order() {
    let host = Host::new("init");
    let parts = Parts {
        kernel: &host.dir.join("kernel"),
        modules: &host.dir.join("modules"),
        dm: &host.dir.join("dm"),
    };
    let archive = initramfs(parts).unwrap();
    let has = |what: &[u8]| archive.windows(what.len()).any(|w| w == what);
    assert!(has(b"init\0"));
    assert!(has(&program(None)));
    assert!(has(
        b"xen-evtchn.ko\nxen-gntalloc.ko\nxen-gntdev.ko\nxen-privcmd.ko\n"
    ));
}

#[test]
fn what_cannot_boot_is_refused_by_its_path() {
    let host = Host::new("refused");
    let error = |host: &Host| format!("{:#}", host.build("out").unwrap_err());
    let dm = host.dir.join("dm");
    fs::write(&dm, program(Some("/lib64/ld-linux-x86-64.so.2"))).unwrap();
    let expected = format!(
        "{} needs /lib64/ld-linux-x86-64.so.2, allowed: a static program",
        dm.display()
    );
    assert_eq!(error(&host), expected);
    fs::write(&dm, "#!/bin/sh").unwrap();
    assert_eq!(
        error(&host),
        format!("{}: is no x86-64 program", dm.display())
    );
    fs::write(&dm, &program(None)[..0x42]).unwrap();
    assert_eq!(error(&host), format!("{}: is cut", dm.display()));
    fs::write(&dm, program(None)).unwrap();
    fs::write(host.dir.join("modules/modules.dep"), "").unwrap();
    assert!(error(&host).starts_with("kernel module xen-evtchn is not in "));
    assert!(!host.dir.join("out").exists());
}
