use super::*;

fn args(trap_ns: u32, submissions: u32) -> Args {
    Args {
        json: true,
        rounds: 1,
        submissions,
        trap_ns,
        protect_ns: trap_ns * 8 / 10,
    }
}

#[test]
fn every_figure_is_there() {
    let json = serde_json::to_value(measure(&args(5_000, 300), false).unwrap()).unwrap();
    for pattern in Pattern::ALL {
        for mode in ShadowMode::ALL {
            let figures = &json["patterns"][pattern.name()][mode.name()];
            for key in ["traps", "compares"] {
                assert!(figures[key].is_u64(), "{pattern:?} {mode}: {key}");
            }
            for key in ["ns_per_write", "added_latency_us"] {
                assert!(
                    figures[key].as_f64().unwrap() > 0.0,
                    "{pattern:?} {mode}: {key}"
                );
            }
        }
    }
}

#[test]
fn adaptive_is_as_good_as_the_better_by_what_can_be_counted() {
    for (trap_ns, submissions) in [(5_000, 4_000), (20_000, 4_000)] {
        let mut figures = measure(&args(trap_ns, submissions), true).unwrap();
        // Few are recycled in so short a time, and the first of each are what
        // adaptive learns from; that one's traps are judged below.
        figures.patterns.remove(Pattern::Recycled.name()).unwrap();
        for (name, pattern) in figures.patterns {
            let by = pattern.adaptive_vs_better;
            assert!(by <= 1.1, "{name} at {trap_ns} ns: {by}");
        }
    }
}

#[test]
fn strict_compares_nothing_and_lazy_traps_nothing() {
    let mut figures = measure(&args(5_000, 500), true).unwrap();
    for whole_tables in [Pattern::Bursts, Pattern::Recycled] {
        figures.patterns.remove(whole_tables.name()).unwrap();
    }
    for (name, pattern) in figures.patterns {
        let (strict, lazy) = (pattern.modes["strict"], pattern.modes["lazy"]);
        assert_eq!(
            (strict.compares, strict.traps),
            (0, pattern.writes),
            "{name}"
        );
        assert_eq!(
            (lazy.compares, lazy.traps),
            (500 * figures.tables, 0),
            "{name}"
        );
    }
}

#[test]
fn of_whole_tables_that_are_written_strict_traps_a_part() {
    let figures = measure(&args(5_000, 640), true).unwrap();
    let pattern = &figures.patterns[Pattern::Bursts.name()];
    assert_eq!(pattern.writes, 10 * 512);
    assert_eq!(pattern.modes["strict"].traps, 10 * 32);
}

#[test]
fn pages_of_tables_that_were_taken_out_are_not_trapped() {
    let figures = measure(&args(5_000, 1_600), true).unwrap();
    let pattern = &figures.patterns[Pattern::Recycled.name()];
    // A table is taken out a hundred times and put back, each an entry.
    assert_eq!(pattern.writes, 200 * 513);
    for mode in ["strict", "adaptive"] {
        let traps = pattern.modes[mode].traps;
        assert!(traps <= 200, "{mode}: {traps}");
    }
}
