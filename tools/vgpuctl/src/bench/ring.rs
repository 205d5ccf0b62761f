//! `vgpuctl bench ring`: a request and its answer over the shared rings,
//! beside two threads that signal each other by bare eventfds.

mod transport;

use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;
use vgpu_ring::{
    AreaWords, Consumer, DEFAULT_SPIN, Event, EventBell, Producer, PushError, Request,
};

use self::transport::{Grants, Transport};
use super::eventfd;
use super::spread::{self, HEADING, Spread};
use crate::table;

/// A request and its answer over the shared rings, beside bare eventfds.
///
/// Over both transports: a memfd with eventfds, as on one host, and grants with
/// event channels, as from a stub domain. In dom0 the grants are real ones, of
/// dom0 to itself; elsewhere they are simulated, and what their signals cost
/// says nothing of Xen.
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
    /// Over memfd and eventfds.
    #[serde(flatten)]
    memfd: Way,
    /// Over two eventfds.
    eventfd_ns: Spread,
    transports: Transports,
}

#[derive(Serialize)]
struct Transports {
    memfd: Way,
    grant: Granted,
}

/// What one transport takes.
#[derive(Clone, Copy, Serialize)]
struct Way {
    /// Over the rings, as they are used.
    round_trip_ns: Spread,
    /// That by the eventfds, round by round.
    ratio: Spread,
    /// Over the rings when both sides sleep at once, as on one processor.
    sleeping_ns: Spread,
    /// That by the eventfds.
    sleeping_ratio: Spread,
}

#[derive(Serialize)]
struct Granted {
    /// Whose grants and event channels.
    over: Grants,
    #[serde(flatten)]
    way: Way,
}

/// Runs it.
///
/// # Errors
/// When the system has no more descriptors, threads or grants.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let figures = measure(args.rounds, args.trips, Grants::here())?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let Transports { memfd, grant } = &figures.transports;
    let rows = [
        memfd.round_trip_ns.row("ring, ns"),
        figures.eventfd_ns.row("eventfd, ns"),
        memfd.ratio.row("ratio"),
        memfd.sleeping_ns.row("ring without polling, ns"),
        memfd.sleeping_ratio.row("ratio"),
        grant.way.round_trip_ns.row("ring over grants, ns"),
        grant.way.ratio.row("ratio"),
        grant.way.sleeping_ns.row("that without polling, ns"),
        grant.way.sleeping_ratio.row("ratio"),
    ];
    print!("{}", table::render(HEADING, rows));
    println!(
        "{} rounds of {} round trips, grants of {}",
        args.rounds, args.trips, grant.over
    );
    Ok(())
}

/// The rings over one transport, and what they took.
struct Lane {
    polling: Rings,
    sleeping: Rings,
    ring_ns: Vec<f64>,
    sleeping_ns: Vec<f64>,
}

impl Lane {
    fn start(transport: Transport) -> anyhow::Result<Self> {
        Ok(Self {
            polling: Rings::start(transport, DEFAULT_SPIN)?,
            sleeping: Rings::start(transport, Duration::ZERO)?,
            ring_ns: Vec::new(),
            sleeping_ns: Vec::new(),
        })
    }

    fn round(&mut self, trips: u32, counts: bool) -> anyhow::Result<()> {
        let ring = time(trips, || self.polling.trip())?;
        let asleep = time(trips, || self.sleeping.trip())?;
        if counts {
            self.ring_ns.push(ring);
            self.sleeping_ns.push(asleep);
        }
        Ok(())
    }

    fn way(self, eventfd_ns: &[f64]) -> Way {
        let ratio =
            |ns: &[f64]| Spread::of(ns.iter().zip(eventfd_ns).map(|(a, b)| a / b).collect());
        Way {
            ratio: ratio(&self.ring_ns),
            sleeping_ratio: ratio(&self.sleeping_ns),
            round_trip_ns: Spread::of(self.ring_ns),
            sleeping_ns: Spread::of(self.sleeping_ns),
        }
    }
}

fn measure(rounds: u32, trips: u32, over: Grants) -> anyhow::Result<Figures> {
    let mut memfd = Lane::start(Transport::Memfd)?;
    let mut grant = Lane::start(Transport::Grant(over))?;
    let bare = eventfd::PingPong::start()?;
    let mut eventfd_ns = Vec::new();
    // The first round warms up and does not count.
    for round in 0..=rounds {
        let eventfd = time(trips, || {
            bare.trip();
            Ok(())
        })?;
        if round > 0 {
            eventfd_ns.push(eventfd);
        }
        memfd.round(trips, round > 0)?;
        grant.round(trips, round > 0)?;
    }
    let memfd = memfd.way(&eventfd_ns);
    let way = grant.way(&eventfd_ns);
    Ok(Figures {
        rounds,
        trips,
        memfd,
        eventfd_ns: Spread::of(eventfd_ns),
        transports: Transports {
            memfd,
            grant: Granted { over, way },
        },
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
    fn start(transport: Transport, spin: Duration) -> anyhow::Result<Self> {
        let (device, daemon) = transport.ends()?;
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
        let figures = measure(3, 10, Grants::FakeXen).unwrap();
        let json = serde_json::to_value(&figures).unwrap();
        let spread = |of: &serde_json::Value, key: &str| {
            for part in ["median", "min", "max"] {
                assert!(of[key][part].as_f64().unwrap() > 0.0, "{key}.{part}");
            }
        };
        let transports = &json["transports"];
        for of in [&json, &transports["memfd"], &transports["grant"]] {
            for key in ["round_trip_ns", "ratio", "sleeping_ns", "sleeping_ratio"] {
                spread(of, key);
            }
        }
        spread(&json, "eventfd_ns");
        assert_eq!(transports["grant"]["over"], "fake-xen");
    }
}
