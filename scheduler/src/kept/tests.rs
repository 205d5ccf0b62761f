use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("vgpu-kept-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join(FILE)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn uuid(n: usize) -> Uuid {
    format!("{n:08x}-0000-4000-8000-00000000000A")
        .parse()
        .unwrap()
}

#[test]
fn what_is_set_is_there_after_a_restart() {
    let dir = Dir::new("restart");
    let kept = KeptShares::open(&dir.0.join("deep"));
    assert_eq!(kept.get(&uuid(1)), None);
    kept.set(&uuid(1), "weight=300").unwrap();
    kept.set(&uuid(2), "priority=low").unwrap();
    kept.set(&uuid(1), "cap=20, weight=5").unwrap();
    let again = KeptShares::open(&dir.0.join("deep"));
    assert_eq!(again.get(&uuid(1)).as_deref(), Some("cap=20,weight=5"));
    assert_eq!(again.get(&uuid(2)).as_deref(), Some("priority=low"));
    again.forget(&uuid(1)).unwrap();
    again.forget(&uuid(7)).unwrap();
    let again = KeptShares::open(&dir.0.join("deep"));
    assert_eq!(again.get(&uuid(1)), None);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.0.join("deep")), 0o700);
    assert_eq!(mode(dir.0.join("deep").join(FILE)), 0o600);
    assert!(!dir.0.join("deep/shares.json.new").exists());
}

#[test]
fn what_is_wrong_changes_nothing() {
    let dir = Dir::new("wrong");
    let kept = KeptShares::open(&dir.0);
    kept.set(&uuid(1), "weight=300").unwrap();
    let error = kept.set(&uuid(1), "weight=0").unwrap_err().to_string();
    assert_eq!(error, r#"vgpu: weight is "0", allowed: 1 to 10000"#);
    assert_eq!(kept.get(&uuid(1)).as_deref(), Some("weight=300"));
    // A directory where the new file would be written first.
    fs::create_dir(dir.0.join("shares.json.new")).unwrap();
    let error = kept.set(&uuid(1), "weight=9").unwrap_err().to_string();
    assert!(error.contains("shares.json"), "{error}");
    assert_eq!(kept.get(&uuid(1)).as_deref(), Some("weight=300"));
}

#[test]
fn the_oldest_is_forgotten() {
    let dir = Dir::new("oldest");
    fs::create_dir_all(&dir.0).unwrap();
    let shares: Vec<Kept> = (0..MAX_GUESTS)
        .map(|n| Kept {
            uuid: uuid(n),
            changes: "cap=5".into(),
        })
        .collect();
    fs::write(dir.file(), render(&shares).unwrap()).unwrap();
    let kept = KeptShares::open(&dir.0);
    // Set anew, so no longer the oldest.
    kept.set(&uuid(0), "cap=6").unwrap();
    kept.set(&uuid(MAX_GUESTS), "cap=7").unwrap();
    let again = KeptShares::open(&dir.0);
    assert_eq!(again.get(&uuid(0)).as_deref(), Some("cap=6"));
    assert_eq!(again.get(&uuid(1)), None);
    assert!(again.get(&uuid(2)).is_some());
    assert!(again.get(&uuid(MAX_GUESTS)).is_some());
}

#[test]
fn a_damaged_file_is_put_aside() {
    let dir = Dir::new("damaged");
    fs::create_dir_all(&dir.0).unwrap();
    for (n, damage) in [(1, "{\"version\""), (2, "other")] {
        fs::write(dir.file(), damage).unwrap();
        let kept = KeptShares::open(&dir.0);
        assert_eq!(kept.get(&uuid(1)), None);
        let aside = dir.0.join(format!("shares.json.damaged-{n}"));
        assert_eq!(fs::read_to_string(aside).unwrap(), damage);
        kept.set(&uuid(1), "cap=5").unwrap();
    }
    // Something that is no file is not opened.
    fs::remove_file(dir.file()).unwrap();
    fs::create_dir(dir.file()).unwrap();
    KeptShares::open(&dir.0).set(&uuid(1), "cap=5").unwrap();
    assert_eq!(
        dir.names(),
        [
            "shares.json",
            "shares.json.damaged-1",
            "shares.json.damaged-2",
            "shares.json.damaged-3"
        ]
    );
}

#[test]
fn a_damaged_file_that_stays_is_never_overwritten() {
    let dir = Dir::new("stays");
    fs::create_dir_all(&dir.0).unwrap();
    fs::write(dir.file(), "precious").unwrap();
    for n in 1..=99 {
        fs::write(dir.0.join(format!("shares.json.damaged-{n}")), "").unwrap();
    }
    let kept = KeptShares::open(&dir.0);
    let error = kept.set(&uuid(1), "cap=5").unwrap_err().to_string();
    assert!(error.ends_with("is damaged and could not be put aside"));
    assert_eq!(fs::read_to_string(dir.file()).unwrap(), "precious");
}

#[test]
fn damage_has_a_reason() {
    let one = r#"{"uuid":"00000001-0000-4000-8000-00000000000a","changes":"cap=5"}"#;
    let with = |version, shares: &str| format!(r#"{{"version":{version},"shares":[{shares}]}}"#);
    assert_eq!(parse(with(1, one).as_bytes()).unwrap().len(), 1);
    for (text, reason) in [
        (with(2, one), "version is 2, allowed: 1"),
        (with(1, &format!("{one},{one}")), "stands twice"),
        (
            with(1, &one.replace("cap=5", "cap=500")),
            r#"cap is "500", allowed: 0 to 100"#,
        ),
        (with(1, &one.replace("cap=5", "")), r#"allowed: KEY=VALUE"#),
        (
            with(1, &one.replace("-4000-", "4000")),
            "allowed: 8-4-4-4-12 hexadecimal digits",
        ),
        (
            with(1, &one.replace("changes", "change")),
            "unknown field `change`",
        ),
        (with(1, &vec![one; 1025].join(",")), "it has 1025 guests"),
        (String::new(), "EOF"),
    ] {
        let error = parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
