//! The screen that changes.

use std::time::{Duration, Instant};

use super::Args;
use super::order::Order;
use super::rates::Rates;
use super::screen::View;
use super::snapshot::Snapshot;
use super::terminal::{Input, Terminal};

/// The second look comes soon, so that there is something to show.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// What is shown, between looks.
struct State {
    last: Option<Snapshot>,
    rates: Option<Rates>,
    trouble: Option<String>,
    order: Order,
    scroll: usize,
}

impl State {
    /// Takes a snapshot, or says why there is none.
    fn look(&mut self, taken: anyhow::Result<Snapshot>) {
        match taken {
            Ok(now) => {
                self.trouble = None;
                let rates = self.last.as_ref().map(|last| Rates::between(last, &now));
                // Figures of another vgpud say nothing about this one.
                if let Some(rates) = rates {
                    self.rates = rates;
                }
                self.last = Some(now);
            }
            Err(e) => {
                self.trouble = Some(format!("{e:#}"));
                self.rates = None;
                self.last = None;
            }
        }
    }

    /// Draws until `until`, or the user quits: whether to go on.
    fn show(&mut self, terminal: &mut Terminal, until: Instant) -> std::io::Result<bool> {
        loop {
            let (width, height) = terminal.size()?;
            let view = View {
                rates: self.rates.as_ref(),
                trouble: self.trouble.as_deref(),
                order: self.order,
                scroll: self.scroll,
                width,
                height,
            };
            let most = view.most_scroll();
            if self.scroll > most {
                self.scroll = most;
                continue;
            }
            terminal.draw(&view.lines())?;
            let left = until.saturating_duration_since(Instant::now());
            match terminal.input(left)? {
                Input::Quit => return Ok(false),
                Input::Letter(c) => self.order = Order::of_key(c).unwrap_or(self.order),
                Input::Scroll(lines) => {
                    self.scroll = self.scroll.saturating_add_signed(lines).min(most);
                }
                Input::Nothing | Input::Resized => {}
            }
            if Instant::now() >= until {
                return Ok(true);
            }
        }
    }
}

/// Shows the screen until the user quits. A vgpud that goes away is told and
/// waited for.
///
/// # Errors
/// When there is no terminal, or it goes away.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut terminal = Terminal::take()?;
    let mut state = State {
        last: None,
        rates: None,
        trouble: None,
        order: args.sort,
        scroll: 0,
    };
    loop {
        state.look(Snapshot::take(&args.daemon));
        let first = state.rates.is_none() && state.trouble.is_none();
        let delay = if first {
            FIRST_DELAY.min(args.delay)
        } else {
            args.delay
        };
        if !state.show(&mut terminal, Instant::now() + delay)? {
            return Ok(());
        }
    }
}
