//! `vgpuctl bench ring`: a request and its answer over the shared rings,
//! beside two threads that signal each other by bare eventfds.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;
use vgpu_ring::{
    AreaConfig, AreaWords, Bells, Consumer, DEFAULT_SPIN, Event, EventBell, Producer, PushError,
    Request, SharedArea,
};

use super::eventfd;
use super::spread::{self, HEADING, Spread};
use crate::table;

/// A request and its answer over the shared rings, beside bare eventfds.
#[derive(clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,

    /// Rounds. Each measures every way once, in turn.
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,

    /// Round trips of each way in a round.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    trips: u32,
}

/// The JSON: nanoseconds, and how many times what an eventfd takes.
#[derive(Serialize)]
struct Figures {
    rounds: u32,
    trips: u32,
    /// Over the rings, as they are used.
    round_trip_ns: Spread,
    /// Over two eventfds.
    eventfd_ns: Spread,
    /// The first by the second, round by round.
    ratio: Spread,
    /// Over the rings when both sides sleep at once, as on one processor.
    sleeping_ns: Spread,
    /// That by the eventfds.
    sleeping_ratio: Spread,
}

/// Runs it.
///
/// # Errors
/// When the system has no more descriptors or threads.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let figures = measure(args.rounds, args.trips)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let rows = [
        figures.round_trip_ns.row("ring, ns"),
        figures.eventfd_ns.row("eventfd, ns"),
        figures.ratio.row("ratio"),
        figures.sleeping_ns.row("ring without polling, ns"),
        figures.sleeping_ratio.row("ratio"),
    ];
    print!("{}", table::render(HEADING, rows));
    println!("{} rounds of {} round trips", args.rounds, args.trips);
    Ok(())
}

fn measure(rounds: u32, trips: u32) -> anyhow::Result<Figures> {
    let mut polling = Rings::start(DEFAULT_SPIN)?;
    let mut sleeping = Rings::start(Duration::ZERO)?;
    let bare = eventfd::PingPong::start()?;
    let mut ring_ns = Vec::new();
    let mut sleeping_ns = Vec::new();
    let mut eventfd_ns = Vec::new();
    // The first round warms up and does not count.
    for round in 0..=rounds {
        let ring = time(trips, || polling.trip())?;
        let eventfd = time(trips, || {
            bare.trip();
            Ok(())
        })?;
        let asleep = time(trips, || sleeping.trip())?;
        if round > 0 {
            ring_ns.push(ring);
            eventfd_ns.push(eventfd);
            sleeping_ns.push(asleep);
        }
    }
    let ratio = |ns: &[f64]| Spread::of(ns.iter().zip(&eventfd_ns).map(|(a, b)| a / b).collect());
    Ok(Figures {
        rounds,
        trips,
        ratio: ratio(&ring_ns),
        sleeping_ratio: ratio(&sleeping_ns),
        round_trip_ns: Spread::of(ring_ns),
        eventfd_ns: Spread::of(eventfd_ns),
        sleeping_ns: Spread::of(sleeping_ns),
    })
}

/// Nanoseconds a trip.
fn time(trips: u32, mut trip: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut result = Ok(());
    let ns = spread::time(trips, || {
        result = (0..trips).try_for_each(|_| trip());
    });
    result.map(|()| ns)
}

/// A device model's end, and a thread in vgpud's place behind it.
struct Rings {
    requests: Producer<Request, AreaWords, EventBell>,
    events: Consumer<Event, AreaWords, EventBell>,
    token: u64,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread to end.
const END: Request = Request::Reset {
    engines: 0,
    epoch: 0,
};

impl Rings {
    fn start(spin: Duration) -> anyhow::Result<Self> {
        let area = SharedArea::create(AreaConfig::default())?;
        let bells = Bells::new()?;
        let device = area.device_end(bells.try_clone()?);
        let daemon = area.daemon_end(bells);
        let mut requests = daemon.requests.with_spin(spin);
        let mut events = daemon.events;
        let thread = thread::Builder::new().name("ring".into()).spawn(move || {
            // Both ends are this program's, so nothing can be wrong with a
            // ring; if something is, the trip under way never ends.
            while requests.wait(None).is_ok() {
                while let Ok(Some(request)) = requests.pop() {
                    let Request::Ping { token } = request else {
                        return;
                    };
                    if events.push(Event::Pong { token }).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Self {
            requests: device.requests,
            events: device.events.with_spin(spin),
            token: 0,
            thread: Some(thread),
        })
    }

    fn trip(&mut self) -> anyhow::Result<()> {
        self.token += 1;
        self.requests.push(Request::Ping { token: self.token })?;
        loop {
            if let Some(event) = self.events.pop()? {
                if event != (Event::Pong { token: self.token }) {
                    bail!("the answer to {} is {event:?}", self.token);
                }
                return Ok(());
            }
            self.events.wait(None)?;
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        let ended: Result<(), PushError> = self.requests.push(END);
        if let (Ok(()), Some(thread)) = (ended, self.thread.take()) {
            // Its panic has been reported on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there() {
        let figures = measure(3, 10).unwrap();
        let json = serde_json::to_value(&figures).unwrap();
        for key in ["round_trip_ns", "eventfd_ns", "ratio", "sleeping_ns"] {
            for part in ["median", "min", "max"] {
                assert!(json[key][part].as_f64().unwrap() > 0.0, "{key}.{part}");
            }
        }
    }
}
