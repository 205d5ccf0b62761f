use clap::{CommandFactory, Parser};

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

/// The cells of a table in a document, row by row, without backquotes.
fn table<const COLUMNS: usize>(document: &'static str, head: &str) -> Vec<[String; COLUMNS]> {
    document
        .lines()
        .skip_while(|l| *l != head)
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .map(|row| {
            let cells = row.split('|').map(|cell| cell.trim().replace('`', ""));
            let cells: Vec<String> = cells.skip(1).take(COLUMNS).collect();
            <[String; COLUMNS]>::try_from(cells).unwrap()
        })
        .collect()
}

/// Every option with its help, in one line.
fn helps() -> Vec<(clap::Arg, String)> {
    let command = Line::command();
    let options = command.get_arguments().map(|arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        (arg.clone(), help.replace('\n', " "))
    });
    options.collect()
}

/// What a value that no option has is refused with, if it is.
fn refusal(option: &str) -> Option<String> {
    let words = ["vgpud".to_owned(), format!("--{option}=no such value")];
    let refused = Line::try_parse_from(words).err()?;
    refused.to_string().lines().next().map(str::to_owned)
}

#[test]
fn the_documentation_names_every_option() {
    let rows = table::<3>(
        include_str!("../../../docs/install.md"),
        "| Option | Default | Allowed | |",
    );
    let of_domains = table::<2>(
        include_str!("../../../docs/stub-domain.md"),
        "| Option | Default | |",
    );
    let (config, rows) = rows.split_first().unwrap();
    assert_eq!(config[0], "config");
    assert!(config[1].starts_with(&format!("{DEFAULT_FILE},")));
    let (last, rows) = rows.split_last().unwrap();
    let mut named: Vec<String> = last[0].split(", ").map(str::to_owned).collect();
    let mut described: Vec<String> = of_domains
        .iter()
        .map(|[name, _]| name.replace('_', "-"))
        .collect();
    named.sort();
    described.sort();
    assert_eq!(named, described);
    named.extend(rows.iter().map(|[name, ..]| name.clone()));
    named.sort();
    let helps = helps();
    let mut options: Vec<&str> = helps.iter().filter_map(|(a, _)| a.get_long()).collect();
    options.sort_unstable();
    assert_eq!(named, options);

    let own = rows.iter().map(|[name, default, _]| (name, default));
    let stub = of_domains.iter().map(|[name, default]| (name, default));
    for (name, default) in own.chain(stub) {
        let name = name.replace('_', "-");
        let (_, help) = helps
            .iter()
            .find(|(a, _)| a.get_long() == Some(&*name))
            .unwrap();
        let ends = format!(" [default: {default}]");
        assert!(help.ends_with(&ends), "{name}: {help:?}, not {ends:?}");
    }
    for [name, _, allowed] in rows {
        let refusal = refusal(name);
        if allowed.is_empty() {
            // A path, or yes and no.
            assert!(refusal.is_none_or(|e| !e.contains("allowed")), "{name}");
            continue;
        }
        let (arg, _) = helps
            .iter()
            .find(|(a, _)| a.get_long() == Some(name.as_str()))
            .unwrap();
        let unit = match arg.get_value_names() {
            Some([unit]) if unit == "SECONDS" => " s",
            Some([unit]) if unit == "MILLISECONDS" => " ms",
            _ => "",
        };
        let bounds = allowed.strip_suffix(unit);
        let bounds = bounds.unwrap_or_else(|| panic!("{name}: {allowed:?} is not in{unit}"));
        // Thousands are set off, unless they are names.
        let bounds = if bounds.contains(" to ") {
            bounds.replace(',', "")
        } else {
            bounds.to_owned()
        };
        let refusal = refusal.unwrap_or_default();
        assert!(
            refusal.ends_with(&format!("llowed: {bounds}")),
            "{name}: {refusal}"
        );
    }
}
