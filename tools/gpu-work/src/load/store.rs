//! Work of command streamers alone, which every engine can do: atomic
//! additions and stores.

use gen8::{Engine, ring};

use super::{Commands, Load, Places, Request, Turn, dword_address, log, mix};

/// The general register that carries a request's number to the next one: a
/// context keeps it (Broadwell PRM volume 7, register state context).
const REGISTER: u32 = ring::GPR0 + 15 * 8;

/// The buffer: the log page, cells that are added to, cells that are stored.
pub struct Store {
    engine: Engine,
    seed: u32,
    passes: u32,
    cells: usize,
    image: Vec<u32>,
}

impl Store {
    /// `cells` of each kind, gone through `passes` times a request.
    pub fn new(engine: Engine, seed: u32, cells: usize, passes: u32) -> Self {
        Self {
            engine,
            seed,
            passes,
            cells,
            image: vec![0; log::DWORDS + 2 * cells],
        }
    }

    fn body(&mut self, places: Places, number: u32) -> Vec<u32> {
        let mut body = Commands::new(self.engine);
        for (cell, name) in (0..self.cells).zip(0_u32..) {
            let (sum, last) = (log::DWORDS + cell, log::DWORDS + self.cells + cell);
            let value = mix([self.seed, number, name, 0]);
            body.add(dword_address(places.data, sum), value);
            let total = value.wrapping_mul(self.passes);
            self.image[sum] = self.image[sum].wrapping_add(total);
            let value = mix([self.seed, number, name, 1]);
            body.store(dword_address(places.data, last), value);
            self.image[last] = value;
        }
        body.end()
    }
}

impl Load for Store {
    fn request(&mut self, places: Places, turn: Turn) -> Request {
        let at = |dword| dword_address(places.data, dword);
        let register = self.engine.mmio_base() + REGISTER;
        let render = self.engine == Engine::Rcs;
        let mut batch = Commands::new(self.engine);
        if let Some(before) = turn.before.filter(|_| render) {
            batch.store_register(register, at(log::REGISTER));
            self.image[log::REGISTER] = before;
        }
        for _ in 0..self.passes {
            batch.call(places.body);
            batch.increment(at(log::PASSES));
        }
        batch.store(at(log::NUMBER), turn.number);
        if render {
            batch.load_register(register, turn.number);
        }
        batch.flush_and_store(at(log::FLUSHED), turn.number);
        self.image[log::PASSES] = self.image[log::PASSES].wrapping_add(self.passes);
        self.image[log::NUMBER] = turn.number;
        self.image[log::FLUSHED] = turn.number;
        Request {
            batch: batch.end(),
            body: self.body(places, turn.number),
        }
    }

    fn image(&self) -> &[u32] {
        &self.image
    }

    fn adopt(&mut self, found: &[u32]) {
        self.image.copy_from_slice(found);
    }

    fn room(&self) -> (usize, usize) {
        let passes = usize::try_from(self.passes).unwrap_or(0);
        // A call and an increment a pass; an addition and a store a cell.
        (32 + passes * 6, 8 + self.cells * 15)
    }
}
