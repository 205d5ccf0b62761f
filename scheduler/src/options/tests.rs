use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn line(text: &str) -> Options {
    let words = ["vgpud"].into_iter().chain(text.split_whitespace());
    Line::try_parse_from(words).unwrap().options
}

/// Every option with a value that is not its default, as on the command line.
const EVERY: &[(&str, &str)] = &[
    ("socket", "/s"),
    ("dm", "/d"),
    ("gpu", "kbl"),
    ("attach-limit", "3"),
    ("run-limit", "4"),
    ("downtime-limit", "5"),
    ("switch-mode", "merged"),
    ("dm-uid-base", "6"),
    ("dm-seccomp", "log"),
    ("dm-hang-limit", "200"),
    ("dm-deaths", "7"),
    ("dm-death-window", "9"),
    ("on-crash-loop", "pause-guest"),
    ("unconfined", "true"),
    ("count-registers", "true"),
    ("shadow", "strict"),
    ("scan", "refuse"),
    ("state-dir", "/v"),
    ("run-dir", "/r"),
    ("stub", "true"),
    ("stub-image", "/i"),
    ("stub-memory", "96"),
    ("xl", "/x"),
    ("stub-cpus", "1-2"),
    ("stub-limit", "7"),
];

fn every_as_line() -> Options {
    let words: Vec<String> = EVERY.iter().map(|(k, v)| format!("--{k}={v}")).collect();
    line(&words.join(" "))
}

#[test]
fn the_file_says_what_the_command_line_can_say() {
    let bare = |v: &str| v.parse::<u64>().is_ok() || v == "true";
    let text: String = EVERY
        .iter()
        .map(|(key, value)| {
            let key = key.replace('-', "_");
            let value = if bare(value) {
                (*value).to_owned()
            } else {
                format!("{value:?}")
            };
            format!("{key} = {value}\n")
        })
        .collect();
    let file = Options::parse(&text).unwrap();
    assert_eq!(file, every_as_line());
    // Each of them got somewhere.
    let debug = format!("{file:?}");
    assert!(!debug.contains("None"), "{debug}");
    assert_eq!(debug.matches("Some(").count(), EVERY.len());
}

#[test]
fn the_command_line_wins() {
    let file = every_as_line();
    assert_eq!(Options::default().over(file.clone()), file);
    let options = line("--stub=false --gpu bdw --attach-limit 9").over(file.clone());
    assert_eq!(options.stub, Some(false));
    assert_eq!(options.gpu, Some(Gpu::Bdw));
    assert_eq!(Within::or(options.attach_limit, 0), 9);
    assert_eq!(options.scan, file.scan);
    assert_eq!(line("--stub").stub, Some(true));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let error = |text: &str| Options::parse(text).unwrap_err().to_string();
    let unknown = error("stub = true\nsub_memory = 64\n");
    assert!(
        unknown.starts_with("line 2: unknown field `sub_memory`, expected one of"),
        "{unknown}"
    );
    assert_eq!(
        error("\n\nattach_limit = 51"),
        "line 3: 51 is not allowed: 1 to 50"
    );
    assert_eq!(
        error("scan = \"maybe\""),
        "line 1: scan mode \"maybe\", allowed: off, note, refuse"
    );
    assert!(error("gpu = \"skl\"").starts_with("line 1: unknown variant `skl`"));
    assert!(error("stub = 1").starts_with("line 1: invalid type: integer `1`"));
    assert!(error("stub =").starts_with("line 1: "));
    let refused = Line::try_parse_from(["vgpud", "--stub-memory", "8"]).err();
    let refused = refused.unwrap().to_string();
    assert!(
        refused.contains("8 is not allowed: 32 to 1024"),
        "{refused}"
    );
}

#[test]
fn only_the_default_file_may_be_missing() {
    let dir = std::env::temp_dir().join(format!("vgpud-options-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("vgpud.toml");
    assert!(Options::read(Some(&path)).is_err());
    fs::write(&path, "stub = true").unwrap();
    assert_eq!(Options::read(Some(&path)).unwrap().stub, Some(true));
    fs::write(&path, "stub = maybe").unwrap();
    let error = format!("{:#}", Options::read(Some(&path)).unwrap_err());
    let expected = format!("{}: line 1: ", path.display());
    assert!(error.starts_with(&expected), "{error}");
    fs::write(&path, "#".repeat(70_000)).unwrap();
    let error = format!("{:#}", Options::read(Some(&path)).unwrap_err());
    assert!(error.contains("has 70000 bytes"), "{error}");
    fs::remove_dir_all(&dir).unwrap();
}
