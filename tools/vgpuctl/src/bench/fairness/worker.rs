//! A guest's driver at work.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Context;
use gen8::Engine;
use guest_driver::Driver;
use sim_host::SimGuest;

use super::crowd::{Gate, Tally};
use super::load::Load;

/// Two batches of each stream are under way while there is work: one runs,
/// one waits. The thread sleeps until the guest's interrupt.
pub struct Worker<'a> {
    driver: Driver<&'a SimGuest>,
    load: &'a Load,
    tally: &'a Tally,
    /// Batches submitted, of each stream.
    turns: Vec<usize>,
    /// Work under way, by engine, in order.
    under_way: [VecDeque<u64>; Engine::COUNT],
    number: u32,
}

impl<'a> Worker<'a> {
    pub fn new(driver: Driver<&'a SimGuest>, load: &'a Load, tally: &'a Tally) -> Self {
        Self {
            driver,
            turns: vec![0; load.streams.len()],
            load,
            tally,
            under_way: Default::default(),
            number: 0,
        }
    }

    /// Works until there is to be no more, and everything is finished.
    pub fn work(&mut self, gate: &Gate) -> anyhow::Result<()> {
        let mut left = self.load.bursts.map(|b| b.batches);
        let mut burst = 0;
        if let Some(bursts) = self.load.bursts {
            gate.sleep(bursts.sleep(burst));
        }
        while gate.working() {
            for stream in 0..self.load.streams.len() {
                while left != Some(0) && self.submit(stream)? {
                    left = left.map(|n| n - 1);
                }
            }
            match self.load.bursts {
                Some(bursts) if left == Some(0) && self.driver.idle() => {
                    burst += 1;
                    gate.sleep(bursts.sleep(burst));
                    left = Some(bursts.batches);
                }
                _ => self.wait()?,
            }
        }
        while !self.driver.idle() {
            self.wait()?;
        }
        Ok(())
    }

    fn submit(&mut self, stream: usize) -> anyhow::Result<bool> {
        let turn = self.turns[stream];
        let stream_of = &self.load.streams[stream];
        let piece = stream_of.pieces[turn % stream_of.pieces.len()];
        let number = self.number;
        let engine = stream_of.engine;
        let taken = self
            .driver
            .submit_given(engine, |slot| piece.given(slot, number))?;
        if taken {
            self.turns[stream] += 1;
            self.number = self.number.wrapping_add(1);
            self.under_way[engine.index()].push_back(piece.work_ns());
        }
        Ok(taken)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        for finished in self.driver.wait()? {
            let engine = finished.engine.index();
            let work = self.under_way[engine].pop_front();
            let work = work.context("more came back than left")?;
            match finished.result {
                Ok(()) => _ = self.tally.work_ns[engine].fetch_add(work, Relaxed),
                Err(e) => {
                    eprintln!("{e}");
                    self.tally.mismatches.fetch_add(1, Relaxed);
                }
            }
        }
        Ok(())
    }
}
