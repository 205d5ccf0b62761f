use proptest::prelude::*;

use super::*;
use crate::detect::Method;

mod world;

use world::{Kind, PAGES, World};

/// What happens during a migration.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A context begins to run, or ends.
    Run(usize, bool),
    /// A running context writes to a page.
    Write(usize, u8),
    /// A round of the migration, with writes in between.
    Round,
    /// The carrier that reads again takes the named pages.
    Begin,
    /// It reads one.
    Read(usize),
    /// The guest gives a page back, or gets it again.
    Balloon(usize, bool),
    /// The host cannot read a page for now.
    Broken(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..world::CONTEXTS, any::<bool>()).prop_map(|(c, run)| Step::Run(c, run)),
        4 => (0..PAGES, 0..3_u8).prop_map(|(page, value)| Step::Write(page, value)),
        3 => Just(Step::Round),
        2 => Just(Step::Begin),
        2 => (0..PAGES).prop_map(Step::Read),
        1 => (0..PAGES, any::<bool>()).prop_map(|(page, there)| Step::Balloon(page, there)),
        1 => (0..PAGES, any::<bool>()).prop_map(|(page, broken)| Step::Broken(page, broken)),
    ]
}

fn method() -> impl Strategy<Value = Method> {
    (0..Method::ALL.len()).prop_map(|i| Method::ALL[i])
}

fn plan() -> impl Strategy<Value = Option<Plan>> {
    let any = (any::<bool>(), any::<bool>(), any::<bool>());
    let fixed = any.prop_map(|(background, send, sampled)| Plan {
        background,
        at_stop: if send { AtStop::Send } else { AtStop::Verify },
        sampled,
    });
    proptest::option::of(fixed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is written when, with whatever carrier: when the guest stands
    /// still and the stop phase is over, the target has its memory.
    #[test]
    fn the_target_is_the_source(
        steps in proptest::collection::vec(step(), 0..60),
        kind in prop_oneof![Just(Kind::Sends), Just(Kind::Queues), Just(Kind::ReadsAgain)],
        during in proptest::collection::vec((0..PAGES, 0..3_u8), 0..40),
        method in method(),
        fixed in plan(),
        room in prop_oneof![Just(0_usize), Just(40_000), Just(1 << 20)],
        threads in 1..3_usize,
    ) {
        let world = World::new(kind, during);
        let options = Options {
            threads: NonZeroUsize::new(threads).unwrap(),
            fixed,
            ..Options::default()
        };
        let detector = method.detector(world::FRAMES, room).unwrap();
        let mut precopy = Precopy::new(detector, world::FRAMES, options);
        for step in steps {
            match step {
                Step::Run(context, run) => world.run(context, run),
                Step::Write(page, value) => world.write(page, value),
                Step::Round => {
                    if world.saw_a_round() {
                        precopy.carrier_began_round();
                    }
                    precopy.round(&world.host()).unwrap();
                }
                Step::Begin => world.begin(),
                Step::Read(page) => world.read_again(page),
                Step::Balloon(page, there) => world.balloon(page, there),
                Step::Broken(page, broken) => world.break_page(page, broken),
            }
        }
        world.stand_still();
        let waited = precopy.waiting();
        let stop = precopy.stop(&world.host()).unwrap();
        prop_assert!(stop.candidates >= waited);
        prop_assert_eq!(precopy.waiting(), 0);
        world.finish();
        prop_assert_eq!(world.missed(), Vec::<u64>::new());
        prop_assert!(stop.sent <= stop.candidates, "{stop:?}");
    }
}

fn sends() -> (World, Precopy) {
    let detector = Method::default().detector(world::FRAMES, 1 << 20).unwrap();
    let options = Options {
        threads: NonZeroUsize::MIN,
        ..Options::default()
    };
    let precopy = Precopy::new(detector, world::FRAMES, options);
    (World::new(Kind::Sends, Vec::new()), precopy)
}

const ALL: u64 = world::PAGES as u64;

#[test]
fn only_what_changed_goes_again() {
    let (world, mut precopy) = sends();
    world.run(0, true);
    world.run(1, true);
    let first = precopy.round(&world.host()).unwrap();
    assert_eq!((first.candidates, first.sent), (ALL, ALL));
    // What a context could write is looked at; what it wrote is sent.
    world.run(1, false);
    let page = world::writable(0)[1];
    world.write(page, 77);
    let again = precopy.round(&world.host()).unwrap();
    // Context 1 was at the GPU when the first round took the names.
    assert_eq!(again.candidates, ALL);
    assert_eq!((again.verified, again.changed, again.sent), (ALL, 1, 1));
    world.stand_still();
    let stop = precopy.stop(&world.host()).unwrap();
    let of_context = world::writable(0).len() as u64;
    assert_eq!((stop.candidates, stop.sent), (of_context, 0));
    assert_eq!(world.missed(), []);
    assert_eq!(precopy.total().sent, ALL + 1);
}

#[test]
fn a_target_out_of_reach_is_an_error() {
    let (world, mut precopy) = sends();
    world.run(0, true);
    world.cut();
    let error = precopy.round(&world.host()).unwrap_err();
    assert_eq!(error.to_string(), "pages do not get to the target: cut");
}

#[test]
fn a_page_that_nobody_can_read_ends_it() {
    let (world, mut precopy) = sends();
    world.run(0, true);
    let page = world::writable(0)[0];
    world.break_page(page, true);
    let round = precopy.round(&world.host()).unwrap();
    assert_eq!(round.unreadable, 1);
    assert_eq!(precopy.waiting(), 1);
    let error = precopy.stop(&world.host()).unwrap_err().to_string();
    assert!(error.contains("cannot be sent"), "{error}");
    assert!(error.contains("broken"), "{error}");
}

#[test]
fn what_changes_all_the_time_is_left_for_the_end() {
    let (world, mut precopy) = sends();
    world.run(0, true);
    precopy.round(&world.host()).unwrap();
    let mut sent = Vec::new();
    for round in 0..12_u8 {
        for &page in world::writable(0) {
            world.write(page, round + 10);
        }
        sent.push(precopy.round(&world.host()).unwrap().sent);
    }
    assert!(sent[0] > 0, "{sent:?}");
    assert_eq!(sent[3..9], [0; 6], "{sent:?}");
    let predicted = precopy.predicted_stop(world.carrier());
    assert!(predicted > Duration::ZERO);
    world.stand_still();
    let stop = precopy.stop(&world.host()).unwrap();
    assert!(stop.blind > 0, "{stop:?}");
    assert_eq!(world.missed(), []);
}
