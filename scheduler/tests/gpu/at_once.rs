//! Everything that can be called, called at once: nobody waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use gen8::Engine;
use guest_memory::VecMemory;
use vgpu_config::Share;
use vgpu_ring::{Event, Request};
use vgpu_sched::events::{EventSink, Full};
use vgpu_sched::vgpu::VgpuConfig;

use crate::driver::{Host, Table, cmd};

const ROUNDS: u32 = 60;
const WORKERS: u64 = 3;

struct Nowhere;

impl EventSink for Nowhere {
    fn push(&mut self, _event: Event) -> Result<(), Full> {
        Ok(())
    }
}

/// Comes, works on every engine, resets, tells of tables and frames, goes.
fn live(host: &Host, id: u64) {
    let mut guest = host.guest(id, 512);
    let mut contexts = Engine::ALL.map(|e| {
        let context = guest.context(e, 1);
        let page = guest.global_page();
        let code = guest.pages(1);
        guest.map(&context, 1 << 20, code);
        guest.write_words(code, &cmd::batch(1 << 20));
        (context, page)
    });
    for round in 1..=ROUNDS {
        for (context, (_, address)) in &mut contexts {
            if round % 7 == 0 {
                guest.emit(context, &cmd::batch(1 << 20));
            } else {
                guest.emit(context, &cmd::store_global(*address, round));
            }
            guest.submit(context, None);
        }
        let root = contexts[0].0.root;
        for request in [
            Request::DestroyPageTable { root },
            Request::InvalidateMemory,
            Request::WriteRegister {
                offset: 0xb118,
                value: round,
            },
            Request::Ping { token: 1 },
        ] {
            guest.handle.handle(request).unwrap();
        }
        guest.handle.flush_events();
        guest.reset(0xf);
        for (context, _) in &mut contexts {
            guest.rewind(context);
        }
    }
}

#[test]
fn no_call_waits_for_ever_for_another() {
    let host = Host::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (host, over) = (&host, &over);
        let during = |look: fn(&Host)| {
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    look(host);
                    std::thread::yield_now();
                }
            });
        };
        during(|host| {
            let view = host.scheduler.inspect();
            assert_eq!(view.engines.len(), Engine::COUNT);
        });
        during(|host| {
            assert_eq!(host.scheduler.engines().len(), Engine::COUNT);
        });
        during(|host| {
            let batch = host.scheduler.trace().read(0, 512);
            assert!(batch.events.len() <= 512);
            host.clock.pass(Duration::from_micros(10));
        });
        // One whose share changes all the time, and that is looked at.
        let shared = Arc::new(
            host.scheduler
                .add_vgpu(
                    VgpuConfig {
                        id: 50,
                        ..VgpuConfig::default()
                    },
                    Arc::new(VecMemory::new(16)),
                    Arc::new(Table::new()),
                    Box::new(Nowhere),
                )
                .unwrap(),
        );
        for n in 0..2 {
            let shared = Arc::clone(&shared);
            scope.spawn(move || {
                let mut weight = 1;
                while !over.load(SeqCst) {
                    weight = weight % 1000 + 1;
                    if n == 0 {
                        shared.set_share(Share {
                            weight,
                            ..Share::default()
                        });
                    } else {
                        shared
                            .handle(Request::Reset {
                                engines: 15,
                                epoch: 1,
                            })
                            .unwrap();
                        assert_eq!(shared.lanes().len(), Engine::COUNT);
                        assert_eq!(shared.inspect().id, 50);
                    }
                }
            });
        }
        drop(shared);
        // And ones that come and go without doing anything.
        scope.spawn(move || {
            let mut id = 100;
            while !over.load(SeqCst) {
                id += 1;
                drop(host.guest(id, 4));
            }
        });
        let workers: Vec<_> = (1..=WORKERS)
            .map(|id| scope.spawn(move || live(host, id)))
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        over.store(true, SeqCst);
        for end in ended {
            end.unwrap();
        }
    });
    assert!(host.scheduler.inspect().vgpus.is_empty());
}
