use super::*;

fn event(at_ns: u64, engine: &str, vgpu: u64, what: What) -> TraceEvent {
    TraceEvent {
        number: 0,
        at_ns,
        engine: engine.into(),
        vgpu,
        what,
    }
}

fn of<'a>(document: &'a Value, phase: &str) -> Vec<&'a Value> {
    let events = document["traceEvents"].as_array().unwrap();
    events.iter().filter(|e| e["ph"] == phase).collect()
}

#[test]
fn workloads_are_complete_events_on_their_vgpus_track() {
    let switch = What::Switch {
        reads: 1,
        writes: 2,
        ns: 300,
    };
    let names = Names::from([(7, "web".into())]);
    let events = [
        event(1000, "rcs0", 5, What::Ready),
        event(2000, "rcs0", 5, switch),
        event(2500, "rcs0", 5, What::Start { slot: 0 }),
        event(3000, "bcs0", 6, What::Ready),
        event(3000, "bcs0", 6, What::Start { slot: 1 }),
        event(9500, "rcs0", 5, What::Done { ran_ns: 7000 }),
        event(9600, "bcs0", 6, What::Reset),
        event(9700, "bcs0", 6, What::Failed),
        event(9800, "bcs0", 6, What::Start { slot: 0 }),
        event(9900, "rcs0", 7, What::Throttled),
    ];
    let document = document(&events, &names);
    assert_eq!(document["displayTimeUnit"], "ns");
    let names: Vec<_> = of(&document, "M")
        .into_iter()
        .map(|m| (&m["name"], &m["pid"], &m["args"]["name"]))
        .map(|(what, pid, name)| format!("{what} {pid} {name}").replace('"', ""))
        .collect();
    assert_eq!(
        names,
        [
            "process_name 1 bcs0",
            "thread_name 1 dom 6",
            "process_name 2 rcs0",
            "thread_name 2 dom 5",
            "thread_name 2 dom 7 web",
        ]
    );
    let runs: Vec<_> = of(&document, "X")
        .into_iter()
        .map(|x| format!("{} {} {} {}", x["name"], x["pid"], x["ts"], x["dur"]))
        .collect();
    assert_eq!(
        runs,
        [
            r#""switch" 2 1.7 0.3"#,
            r#""dom 5" 2 2.5 7.0"#,
            r#""dom 6" 1 3.0 6.7"#,
            // Still there at the end.
            r#""dom 6" 1 9.8 0.1"#,
        ]
    );
    let run = of(&document, "X")[1];
    assert_eq!(run["tid"], 5);
    assert_eq!(run["args"], json!({"slot": 0, "waited_us": 1.5}));
    assert_eq!(of(&document, "X")[2]["args"]["ended"], "failed");
    assert_eq!(of(&document, "X")[3]["args"]["under_way"], true);
    let instants: Vec<_> = of(&document, "i").iter().map(|i| &i["name"]).collect();
    assert_eq!(instants, ["reset", "throttled"]);
    assert!(of(&document, "i").iter().all(|i| i["s"] == "t"));
}

#[test]
fn a_trace_that_begins_in_the_middle_is_shown_as_far_as_it_goes() {
    let events = [
        event(100, "rcs0", 5, What::Done { ran_ns: 7000 }),
        event(200, "rcs0", 5, What::Cancelled),
    ];
    let document = document(&events, &Names::new());
    let runs = of(&document, "X");
    assert_eq!((runs.len(), &runs[0]["ts"]), (1, &json!(0.0)));
    assert_eq!(of(&document, "i")[0]["name"], "cancelled");
    assert_eq!(
        super::document(&[], &Names::new())["traceEvents"],
        json!([])
    );
}
